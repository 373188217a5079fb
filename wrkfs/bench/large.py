"""Works on one large file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from wrkfs.bench.place import WorkFailed

if TYPE_CHECKING:
    from wrkfs.bench.place import Place

MIB = 1 << 20
PAGE = 4096
STRIDE = 2654435761
"""Odd and large: its multiples jump about in the file, the same way in every run."""


def seq_write_fsync(place: Place) -> int:
    """MiB written one by one, then fsync."""
    block = os.urandom(MIB)
    with place.path("large").open("wb", buffering=0) as file:
        for _ in range(place.size.mib):
            if file.write(block) != MIB:
                raise WorkFailed("a write was cut short")
        os.fsync(file.fileno())
    return place.size.mib


def seq_read(place: Place) -> int:
    """The same file, a MiB at a time."""
    read = 0
    buffer = bytearray(MIB)
    with place.path("large").open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            read += count
    if read != place.size.mib * MIB:
        raise WorkFailed(f"{read} bytes of {place.size.mib} MiB")
    return place.size.mib


def rand_write_fsync_4k(place: Place) -> int:
    """4 KiB at scattered places of that file, each followed by fsync, as a database does."""
    block = os.urandom(PAGE)
    pages = place.size.mib * MIB // PAGE
    descriptor = os.open(place.path("large"), os.O_RDWR)
    try:
        for number in range(place.size.fsyncs):
            os.pwrite(descriptor, block, number * STRIDE % pages * PAGE)
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return place.size.fsyncs


def have_large(place: Place) -> None:
    """Writes the file unless it is there."""
    path = place.path("large")
    if not path.exists() or path.stat().st_size != place.size.mib * MIB:
        seq_write_fsync(place)
