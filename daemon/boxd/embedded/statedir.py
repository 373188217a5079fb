"""The state directory: private to its owner, and used by one daemon at a time."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from boxd.errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

LOCK = "lock"
REMAINS_S = 10.0
"""Seconds within which the processes of a killed daemon must have ended."""
POLL = 0.02


def make_private(path: Path) -> None:
    """Create a directory for its owner alone. Raises Unavailable if it is open to others."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}; use another --state-dir") from error
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise Unavailable(f"{path} is open to others; run: chown root {path} && chmod 700 {path}")


def hold_lock(state: Path) -> int:
    """Lock the state directory for this process, until the returned descriptor is closed.

    Processes that this one forks hold the lock, too. Raises Unavailable with the pid of the process
    that holds the lock.
    """
    fd = os.open(state / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + REMAINS_S
    while not _locked(fd):
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        if _has_ended(holder) and time.monotonic() < deadline:
            time.sleep(POLL)  # the kernel is ending the processes that it had forked
            continue
        os.close(fd)
        raise Unavailable(
            f"{state} is served by process {holder}; stop that boxd (Ctrl-C there, or: boxd down) "
            "or use another --state-dir"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _locked(fd: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _has_ended(holder: str) -> bool:
    """Return whether a process has ended, even if its parent has not taken its exit status."""
    if not holder.isdigit():
        return False
    try:
        with open(f"/proc/{holder}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(") ")[2].startswith("Z")
    except OSError:
        return True


def lock_holder(state: Path) -> str | None:
    """Return the pid, as text, of the daemon that uses the state directory, or None.

    Waits for the end of the processes of a daemon that was killed.
    """
    try:
        file = (state / LOCK).open("rb")
    except OSError:
        return None
    deadline = time.monotonic() + REMAINS_S
    with file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(file.fileno(), 32, 0).decode("ascii", "replace").strip()
                if not _has_ended(holder) or time.monotonic() > deadline:
                    return holder or "unknown"
                time.sleep(POLL)
            else:
                return None
