"""Reads and duplicates file descriptors of processes in a box."""

from __future__ import annotations

import ctypes
import os
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

GONE = (FileNotFoundError, ProcessLookupError, PermissionError, NotADirectoryError)
"""Errors for a process or descriptor that no longer exists or is not visible."""
_PIDFD_GETFD = 438
_libc = ctypes.CDLL(None, use_errno=True)


def targets(pid: int) -> Iterator[tuple[int, str]]:
    """Yield the descriptors of a process with their targets, as in /proc/PID/fd."""
    with suppress(*GONE):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(*GONE):
                yield int(name), os.readlink(f"/proc/{pid}/fd/{name}")


def count(pid: int) -> int:
    """Return the number of descriptors of a process; 0 if it has ended."""
    with suppress(*GONE):
        place = f"/proc/{pid}/fd"
        # Linux before 6.2 reports a size of 0.
        return os.stat(place).st_size or len(os.listdir(place))
    return 0


def referring(pid: int, target: str) -> Iterator[int]:
    """Return the descriptors of a process that refer to `target`."""
    return (descriptor for descriptor, actual in targets(pid) if actual == target)


@contextmanager
def borrowed(pid: int, descriptor: int) -> Iterator[int]:
    """Yield a duplicate of another process's descriptor. Raises OSError if it is closed."""
    process = os.pidfd_open(pid)
    try:
        copy = _libc.syscall(_PIDFD_GETFD, process, descriptor, 0)
        if copy < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(process)
    try:
        yield copy
    finally:
        os.close(copy)


@contextmanager
def borrowed_socket(pid: int, descriptor: int) -> Iterator[socket.socket]:
    """Yield a socket of another process. Raises OSError if it is closed or not a socket."""
    with borrowed(pid, descriptor) as copy:
        sock = socket.socket(fileno=copy)  # on an error, `borrowed` closes `copy`
        try:
            yield sock
        finally:
            sock.detach()
