"""Workloads on one large file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from wrkfs.bench.place import WorkloadFailed

if TYPE_CHECKING:
    from wrkfs.bench.place import Place

MIB = 1 << 20
PAGE = 4096
STRIDE = 2654435761
"""A large odd number: its multiples are scattered over the file, in the same way in every run."""


def seq_write_fsync(place: Place) -> int:
    """Write the file in blocks of a MiB, then fsync; return the number of MiB."""
    block = os.urandom(MIB)
    with place.path("large").open("wb", buffering=0) as file:
        for _ in range(place.size.mib):
            if file.write(block) != MIB:
                raise WorkloadFailed("a write was incomplete")
        os.fsync(file.fileno())
    return place.size.mib


def seq_read(place: Place) -> int:
    """Read the file in blocks of a MiB; return the number of MiB."""
    size = 0
    buffer = bytearray(MIB)
    with place.path("large").open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            size += count
    if size != place.size.mib * MIB:
        raise WorkloadFailed(f"the file has {size} bytes instead of {place.size.mib} MiB")
    return place.size.mib


def rand_write_fsync_4k(place: Place) -> int:
    """Write 4 KiB at scattered offsets, each with fsync, as a database does; return the count."""
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


def prepare_large(place: Place) -> None:
    """Write the file unless it exists."""
    path = place.path("large")
    if not path.exists() or path.stat().st_size != place.size.mib * MIB:
        seq_write_fsync(place)
