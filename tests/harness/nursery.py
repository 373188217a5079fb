"""Programs that tests start often: loaded once, and forked for each start.

Loading takes half a second of processor time for a mount, and one and a half for the service. That
is most of the time of a test that starts them often. A nursery loads a program and waits. For each
start it forks a process, which continues as `python -m MODULE` does. The process is a child of the
test's process. It has its own arguments, directory, environment and descriptors, and the program's
usual command line.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from tests.plugins import no_leaks

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
PADDING = "." * 2000
"""As long as the longest command line of a start."""
ANSWER = 64
"""Bytes of the longest answer of a nursery."""
SET_CHILD_SUBREAPER = 36


class Started:
    """A process forked by a nursery, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, stdout: int | None) -> None:
        self.pid = pid
        self.stdout = None if stdout is None else os.fdopen(stdout, "rb")
        self.returncode: int | None = None
        self._handle = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return the exit status after its end (negative for a signal), else None."""
        if self.returncode is None and self._ended(0.0):
            self._reap()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit status. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not self._ended(timeout):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self._reap()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._handle, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> bool:
        waiting = select.poll()
        waiting.register(self._handle, select.POLLIN)
        return bool(waiting.poll(None if timeout is None else timeout * 1000))

    def _reap(self) -> None:
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self._handle)


class Nursery:
    """One loaded program, which ends with the test's process."""

    def __init__(self, module: str, *more: str) -> None:
        """`more` are modules that the program loads only while it runs."""
        libc = ctypes.CDLL(None, use_errno=True)
        # A process that was forked twice becomes a child of this process.
        if libc.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
        self._lock = threading.Lock()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.harness.nursery_main", PADDING, module, *more],
                stdin=theirs.fileno(),
                cwd=ROOT,
            )
        assert self._ours.recv(ANSWER) == b"loaded"
        no_leaks.STAYS.add(self._process.pid)
        no_leaks.STAYS_OPEN.add(self._ours.fileno())

    def start(
        self,
        arguments: Sequence[str],
        *,
        log: int,
        out: int | None = None,
        pass_fds: Sequence[int] = (),
        new_session: bool = False,
    ) -> Started:
        """Start the program; `log` takes its errors, and its output without an `out`.

        `out` may be `subprocess.PIPE`. `pass_fds` have the same numbers in the program.
        """
        reader, writer = os.pipe() if out == subprocess.PIPE else (None, os.dup(out or log))
        nothing = os.open(os.devnull, os.O_RDONLY)
        request = {
            "arguments": list(arguments),
            "directory": os.getcwd(),
            "environment": dict(os.environ),
            "numbers": [0, 1, 2, *pass_fds],
            "new_session": new_session,
        }
        descriptors = [nothing, writer, log, *pass_fds]
        with self._lock:
            socket.send_fds(self._ours, [json.dumps(request).encode()], descriptors)
            pid = int(self._ours.recv(ANSWER))
        os.close(nothing)
        os.close(writer)
        return Started(pid, reader)

    def close(self) -> None:
        """Permit no more starts; started programs continue."""
        no_leaks.STAYS_OPEN.discard(self._ours.fileno())
        self._ours.close()
        self._process.wait()
        no_leaks.STAYS.discard(self._process.pid)


_NURSERIES: dict[tuple[str, ...], Nursery] = {}


def nursery(module: str, *more: str) -> Nursery:
    """Return the nursery of a program, which exists until the end of the run."""
    found = _NURSERIES.get((module, *more))
    if found is None:
        found = _NURSERIES[module, *more] = Nursery(module, *more)
    return found


def pytest_sessionfinish() -> None:
    """Close all nurseries at the end of the run."""
    while _NURSERIES:
        _NURSERIES.popitem()[1].close()
