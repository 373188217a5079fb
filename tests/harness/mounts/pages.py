"""The pages of a file in the kernel's page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PAGE = 4096


def resident(descriptor: int, pages: int) -> int:
    """Return how many pages of a file the kernel caches."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    at = libc.mmap(None, pages * PAGE, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    assert at not in (None, ctypes.c_void_p(-1).value)
    found = ctypes.create_string_buffer(pages)
    try:
        assert libc.mincore(at, pages * PAGE, found) == 0
    finally:
        libc.munmap(at, pages * PAGE)
    return sum(byte & 1 for byte in found.raw[:pages])


def reads_from_pages(path: Path, wanted: bytes) -> bool:
    """Return whether the kernel caches all pages of a file at open; their bytes must be right."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        kept = resident(descriptor, len(wanted) // PAGE) == len(wanted) // PAGE
        assert os.pread(descriptor, len(wanted) + 1, 0) == wanted
    finally:
        os.close(descriptor)
    return kept
