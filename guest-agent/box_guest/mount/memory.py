"""How the process keeps its memory: what it gives back, and how often it looks for garbage."""

from __future__ import annotations

import asyncio
import ctypes
import gc

_LIBC = ctypes.CDLL(None)

COLLECT = (5000, 20, 50)
"""Thresholds of the garbage collector. Its own (700, 10, 10) *measured* 6 % of the processor time
of small works, and a fifth of that of keeping 200,000 names, for cycles that hardly occur here."""


def collect_rarely() -> None:
    """Once, when all modules are there: what is there by then is not looked at any more."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT)


def give_back_soon() -> None:
    """What the allocator keeps free goes back to the host, while nothing is to do.

    *Measured* under mixed work: of 157 MiB resident 25 to 40 were free, from minute to minute more
    or fewer; afterwards 133, always the same. One call took 8 ms, in a thread, and other threads
    may wait for it. Needs a running loop; nothing happens without glibc.
    """
    if hasattr(_LIBC, "malloc_trim"):
        asyncio.get_running_loop().run_in_executor(None, _LIBC.malloc_trim, 0)
