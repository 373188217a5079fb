"""fallocate(2) with its modes, which Python's library lacks."""

from __future__ import annotations

import ctypes
import os

KEEP_SIZE = 0x01
PUNCH = 0x02
COLLAPSE = 0x08
ZERO = 0x10
INSERT = 0x20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def fallocate(descriptor: int, mode: int, offset: int, length: int) -> None:
    """Call fallocate(2). Raises OSError."""
    if _libc.fallocate(descriptor, mode, offset, length):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
