"""The state directory: private to its owner, and used by one daemon at a time."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from boxd.errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

LOCK = "lock"


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

    Raises Unavailable with the pid of the process that holds the lock.
    """
    fd = os.open(state / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise Unavailable(
            f"{state} is served by process {holder}; stop that boxd (Ctrl-C there, or: boxd down) "
            "or use another --state-dir"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def lock_holder(state: Path) -> str | None:
    """Return the pid, as text, of the daemon that uses the state directory, or None."""
    try:
        file = (state / LOCK).open("rb")
    except OSError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read(32).decode("ascii", "replace").strip() or "unknown"
    return None
