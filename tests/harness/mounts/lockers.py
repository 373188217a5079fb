"""Processes that take locks on a mount, one command at a time."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import errno, fcntl, os, signal, struct, sys
FORMAT = "hhqqi4x"
TYPES = {"read": fcntl.F_RDLCK, "write": fcntl.F_WRLCK, "none": fcntl.F_UNLCK}
COMMANDS = {
    "set": fcntl.F_SETLK, "wait": fcntl.F_SETLKW, "get": fcntl.F_GETLK,
    "ofd-set": fcntl.F_OFD_SETLK, "ofd-wait": fcntl.F_OFD_SETLKW, "ofd-get": fcntl.F_OFD_GETLK,
}
files = {}

def interrupted(*_):
    raise InterruptedError(errno.EINTR, "signal")

signal.signal(signal.SIGUSR1, interrupted)

def act(verb, *rest):
    if verb == "open":
        files[rest[0]] = os.open(rest[1], os.O_RDWR | os.O_CREAT)
    elif verb == "close":
        os.close(files.pop(rest[0]))
    elif verb == "dup":
        files[rest[1]] = os.dup(files[rest[0]])
    elif verb == "flock":
        fcntl.flock(files[rest[0]], sum(getattr(fcntl, "LOCK_" + name) for name in rest[1:]))
    elif verb == "pwrite":
        return os.pwrite(files[rest[0]], rest[2].encode(), int(rest[1]))
    elif verb == "pread":
        return os.pread(files[rest[0]], int(rest[2]), int(rest[1])).decode()
    elif verb == "fsync":
        os.fsync(files[rest[0]])
    else:
        name, kind, first, length = rest
        lock = struct.pack(FORMAT, TYPES[kind], 0, int(first), int(length), 0)
        found = fcntl.fcntl(files[name], COMMANDS[verb], lock)
        if verb.endswith("get"):
            kind, _, first, length, pid = struct.unpack(FORMAT, found)
            if kind == fcntl.F_UNLCK:
                return "free"
            mode = "read" if kind == fcntl.F_RDLCK else "write"
            return "%s %d %d %d" % (mode, first, length, pid)
    return "done"

for line in sys.stdin:
    try:
        answer = act(*line.split())
    except OSError as error:
        answer = errno.errorcode[error.errno]
    print(answer, flush=True)
"""


class Locker:
    """One process. Each command is a line, and its answer another."""

    def __init__(self, path: Path | None = None) -> None:
        """`path` is opened as descriptor `f`."""
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if path is not None:
            assert self("open", "f", path) == "done"

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def __call__(self, *words: object) -> str:
        """Execute a command and return the answer: `done`, a value or the name of an errno."""
        self.begin(*words)
        return self.answer()

    def begin(self, *words: object) -> None:
        """Send a command whose answer is read later."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        """Return the answer of a command that was begun."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def fileno(self) -> int:
        """Return the descriptor of the answers."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def interrupt(self) -> None:
        """Send a signal that the process handles."""
        os.kill(self.pid, signal.SIGUSR1)

    def waits(self) -> bool:
        """Return whether the process sleeps in fcntl or flock."""
        with open(f"/proc/{self.pid}/syscall", encoding="ascii") as file:
            number = file.read().split()[0]
        return number in ("72", "73", "25", "32")  # of x86-64 and of arm64

    def end(self) -> None:
        """Let the process end by itself."""
        self._process.communicate(timeout=30)

    def kill(self) -> None:
        """Kill the process. Idempotent."""
        self._process.kill()
        self._process.communicate(timeout=30)


def answering(lockers: list[Locker]) -> Locker:
    """Return the first of some lockers that answers."""
    readable, _, _ = select.select(lockers, [], [], 30)
    first: Locker = readable[0]
    return first
