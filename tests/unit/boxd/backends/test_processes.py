"""Telling a box's init from other processes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from boxd.backends import processes
from boxd.errors import Conflict

if TYPE_CHECKING:
    from pathlib import Path


def test_cgroups_of_a_process() -> None:
    text = "4:memory:/boxd-1/x\n1:name=systemd:/boxd-1/x\n0::/a:b\n"
    assert processes.cgroups_of(text) == {"/boxd-1/x", "/a:b"}


def test_zombies() -> None:
    assert processes.is_zombie("7 (a) b) Z 1 7")
    assert not processes.is_zombie("7 (Z Z) S 1 7")


def test_pid_files(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    assert processes.read_pid(file) is None
    file.write_text("")
    assert processes.read_pid(file) is None
    file.write_text("12")
    assert processes.read_pid(file) == 12


def test_a_reused_pid_is_not_taken_for_the_box(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    file.write_text(str(os.getpid()))
    assert not processes.runs(file, "/boxd-1/x")
    with pytest.raises(Conflict, match="does not run"), processes.init_process(file, "/boxd-1/x"):
        pass


async def test_what_does_not_run_has_ended(tmp_path: Path) -> None:
    await processes.end(tmp_path / "absent", "/boxd-1/x", 1)
    processes.kill([2**22 - 1])
