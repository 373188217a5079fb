"""Dead sessions: only those whose process has verifiably ended on this host."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from wrkfs.meta.postgres import hosts
from wrkfs.meta.postgres.hosts import Witness, is_dead

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHILD = """
import os, sys
from wrkfs.meta.postgres.hosts import Witness
print(Witness().identity, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of the test's own instead of the machine's."""
    monkeypatch.setattr(hosts, "MEMORY", tmp_path)
    return tmp_path


@pytest.fixture
def child() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start another process, yield its identity, and remove its files."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        identity = process.stdout.readline().strip()
        yield process, identity
        process.kill()
    (hosts.MEMORY / identity.rpartition("/")[2]).unlink(missing_ok=True)


def test_processes_live_until_they_end(child: tuple[subprocess.Popen[str], str]) -> None:
    process, identity = child
    assert not is_dead(identity)
    assert not is_dead(identity), "the question changes nothing"
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_dead(identity), "a zombie does nothing any more"
    process.wait()
    assert is_dead(identity)


def test_who_ends_in_peace_leaves_nothing(memory: Path) -> None:
    witness = Witness()
    assert not is_dead(witness.identity), "this process"
    witness.close()
    witness.close()
    assert not is_dead(witness.identity), "nobody can tell any more"
    assert list(memory.iterdir()) == []


def test_of_a_clone_of_this_machine_nothing_is_known(
    child: tuple[subprocess.Popen[str], str],
) -> None:
    """All names and numbers are the same, except those created since."""
    process, identity = child
    process.kill()
    process.wait()
    there = identity[: -len(identity.rpartition("/")[2])] + hosts.PREFIX + "0" * 32
    assert is_dead(identity)
    assert not is_dead(there)


@pytest.mark.parametrize("part", [0, 1])
def test_a_copy_of_the_file_says_nothing(memory: Path, part: int) -> None:
    """An identity of another boot or file system is a copy, and proves nothing."""
    name = hosts.PREFIX + "0" * 32
    (memory / name).touch()
    descriptor = os.open(memory / name, os.O_RDONLY)
    parts = hosts._identity(name, descriptor).split("/")
    os.close(descriptor)
    assert is_dead("/".join(parts))
    parts[part] = "0:0"
    assert not is_dead("/".join(parts))


def test_what_was_left_long_ago_is_removed(memory: Path) -> None:
    lately, long_ago = memory / f"{hosts.PREFIX}a", memory / f"{hosts.PREFIX}b"
    other = memory / "other"
    living = Witness()
    for path in (lately, long_ago, other):
        path.touch()
    for path in (long_ago, other, living._path):
        os.utime(path, (0, 0))
    Witness().close()
    assert set(memory.iterdir()) == {lately, other, living._path}
    living.close()


@pytest.mark.parametrize(
    "text",
    ["", "/", "a/b/c/d", "a/b/wrkfs-", "a/b/wrkfs-../x", "1/2/3/4/5", "x" * 200, "a/b/wrkfs-\0"],
)
def test_what_nobody_wrote_says_nothing(text: str) -> None:
    assert not is_dead(text)


def test_who_cannot_tell_its_machine_leaves_nothing(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions try again at each registration."""
    monkeypatch.setattr(hosts, "BOOT_ID", memory / "none")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="none"):
        Witness()
    assert list(memory.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before
