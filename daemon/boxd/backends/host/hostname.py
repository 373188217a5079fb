"""Sets the host name of a box from outside."""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor

_NEWUTS = 0x04000000
_libc = ctypes.CDLL(None, use_errno=True)


def set_of_process(pid: int, hostname: str) -> None:
    """Set the host name in the UTS namespace of a process. Raises OSError.

    A thread of its own enters the namespace, and then ends.
    """
    with ThreadPoolExecutor(1) as thread:
        thread.submit(_set, pid, hostname).result()


def _set(pid: int, hostname: str) -> None:
    namespace = os.open(f"/proc/{pid}/ns/uts", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(namespace, _NEWUTS))
    finally:
        os.close(namespace)
    name = hostname.encode()
    _check(_libc.sethostname(name, len(name)))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
