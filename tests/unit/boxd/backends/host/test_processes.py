"""Telling a box's init from other processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.backends.host import processes
from boxd.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMER = """
import ctypes, sys
ctypes.CDLL(None).prctl(15, bytes.fromhex(sys.argv[1]), 0, 0, 0)
print("named", flush=True)
sys.stdin.read()
"""
"""15 is PR_SET_NAME."""


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
    with pytest.raises(Conflict, match="is not running"), processes.init_process(file, "/boxd-1/x"):
        pass


def test_stopped_and_gone_processes_are_suspects() -> None:
    with (
        subprocess.Popen(["/bin/sleep", "600"]) as stopped,
        subprocess.Popen(["/bin/sleep", "600"]) as well,
    ):
        try:
            stopped.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, stopped.pid, os.WSTOPPED)
            pids = {"stopped": stopped.pid, "well": well.pid, "none": None, "gone": 2**22 - 1}
            assert processes.suspects(pids) == {"stopped", "none", "gone"}
        finally:
            stopped.kill()
            well.kill()


def test_a_stopped_process_gets_no_grace(tmp_path: Path) -> None:
    """It cannot end by itself; the test would wait for the grace of an hour."""
    file = tmp_path / "pid"
    with subprocess.Popen(["/bin/sleep", "600"]) as child:
        file.write_text(str(child.pid))
        cgroup = processes.cgroups_of(Path("/proc/self/cgroup").read_text()).pop()
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        asyncio.run(processes.end(file, cgroup, 3600))
        assert child.wait() == -signal.SIGKILL


async def test_what_does_not_run_has_ended(tmp_path: Path) -> None:
    await processes.end(tmp_path / "absent", "/boxd-1/x", 1)
    processes.kill([2**22 - 1])


@pytest.fixture(
    params=[b"runc:[2:INIT]", b"\xff", b"\xc2\x85) Z 1", b"a\x0cState:\tT", b"a\rNoNewPrivs:\t1"]
)
def named(request: pytest.FixtureRequest) -> Iterator[int]:
    """The pid of a process that has given itself a name of these bytes."""
    command = [sys.executable, "-c", NAMER, request.param.hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"named\n"
        yield process.pid
        process.kill()


def test_a_process_may_have_any_name(tmp_path: Path, named: int) -> None:
    """Root in a box can name its init by ptrace. The service must still start beside it."""
    file = tmp_path / "pid"
    file.write_text(str(named))
    cgroup = min(processes.cgroups_of(Path("/proc/self/cgroup").read_text()))
    assert processes.runs(file, cgroup)
    assert processes.rights(named) == processes.rights(os.getpid())
    assert processes.init_state(named).stopped == ""
