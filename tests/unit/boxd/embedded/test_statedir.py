"""One daemon at a time, also right after one was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from boxd.embedded.statedir import hold_lock, lock_holder
from boxd.errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

HOLDER = """
import os, sys, time
from pathlib import Path
from boxd.embedded.statedir import hold_lock
hold_lock(Path(sys.argv[1]))
if os.fork() == 0:
    time.sleep(float(sys.argv[2]))
    os._exit(0)
print("held", flush=True)
time.sleep(60)
"""


def holder(state: Path, child_s: float) -> subprocess.Popen[str]:
    """Return a process that holds the lock; a child holds it for some seconds longer."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(state), str(child_s)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_daemon_is_told_the_first(tmp_path: Path) -> None:
    with holder(tmp_path, 0.0) as process:
        try:
            assert lock_holder(tmp_path) == str(process.pid)
            with pytest.raises(Unavailable, match=f"is served by process {process.pid}; stop"):
                hold_lock(tmp_path)
        finally:
            process.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("reaped", [True, False])
def test_the_processes_of_a_killed_daemon_may_take_a_moment(tmp_path: Path, reaped: bool) -> None:
    with holder(tmp_path, 0.6) as process:
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended
        if reaped:
            process.wait()
        lock = hold_lock(tmp_path)
        assert lock_holder(tmp_path) == str(os.getpid())
        os.close(lock)
    assert lock_holder(tmp_path) is None


def test_whoever_asks_waits_as_well(tmp_path: Path) -> None:
    with holder(tmp_path, 0.6) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert lock_holder(tmp_path) is None


def test_no_directory_has_no_holder(tmp_path: Path) -> None:
    assert lock_holder(tmp_path / "none") is None
