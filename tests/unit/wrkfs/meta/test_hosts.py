"""Who is known to be dead: only processes that could be seen here."""

from __future__ import annotations

import os
import subprocess

import pytest

from wrkfs.meta.hosts import identity, is_dead


def test_processes_live_until_they_end() -> None:
    assert not is_dead(identity())
    with subprocess.Popen(["sleep", "60"]) as child:
        other = identity(child.pid)
        assert not is_dead(other)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_dead(other), "a zombie does nothing any more"
    assert is_dead(other)


def test_a_number_that_is_used_again_is_another_process() -> None:
    boot, namespace, pid, start = identity().split("/")
    assert is_dead(f"{boot}/{namespace}/{pid}/{int(start) - 1}")


@pytest.mark.parametrize("part", [0, 1])
def test_nothing_is_known_of_processes_elsewhere(part: int) -> None:
    parts = identity().split("/")
    parts[part] = "0"
    parts[2] = "999999999"
    assert not is_dead("/".join(parts))


@pytest.mark.parametrize("text", ["", "/", "a/b/c/d", "a/b/1", "1/2/3/4/5", "x" * 200])
def test_what_nobody_wrote_says_nothing(text: str) -> None:
    assert not is_dead(text)
