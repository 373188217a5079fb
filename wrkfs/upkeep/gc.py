"""Garbage collection: objects that no file shows any more leave the store.

What is garbage is known from rows, never from a listing of the bucket: slices that lost their last
ref (`deleted`), and ids that ended sessions took and never committed (`slice_range`). Any error
ends the round; the rows stay and the next round goes on. Two rounds at once do no harm.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from wrkfs.layout import SLICE_MAX, block_count, block_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wrkfs.fs import Filesystem

GRACE = timedelta(seconds=120)
"""So long objects stay after their last ref went: for reads under way, whose layout is that old at
most. Above the longest call (90 s). Snapshots hold back collection by themselves."""
BATCH_SLICES = 500
BATCH_KEYS = 1000
"""Objects that one request deletes (S3's limit)."""
BATCH_RANGES = 16


@dataclass(slots=True)
class Collected:
    """What a round did.

    `slices`: their objects are gone; `size`: bytes that these had, as far as it is known;
    `orphans`: ids of ended sessions that were found uncommitted.
    """

    slices: int = 0
    size: int = 0
    orphans: int = 0


async def collect(
    fs: Filesystem,
    *,
    grace: timedelta = GRACE,
    batches: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Collected:
    """Deletes the objects of all present garbage. Safe beside any use of the volume.

    `batches` bounds what it takes on: who does other work as well goes on in the next round.
    `progress` is told the number of slices after each batch. Raises StorageError, Unavailable: the
    round has ended early, with nothing lost.
    """
    stores = fs.stores
    done = Collected()
    for _ in _rounds(batches):
        ranges, ids = await stores.upkeep.adopt_orphans(grace, BATCH_RANGES, SLICE_MAX)
        done.orphans += ids
        if not ranges or (batches is not None and done.orphans >= batches * BATCH_SLICES):
            break
    for _ in _rounds(batches):
        garbage = await stores.upkeep.garbage(grace, BATCH_SLICES)
        if not garbage:
            break
        # A crash of the database must not bring back what shows them.
        await stores.meta.sync()
        keys = [
            block_key(stores.prefix, slice_id, index)
            for slice_id, size in garbage
            for index in range(block_count(min(size, SLICE_MAX)) or 1)
        ]
        for start in range(0, len(keys), BATCH_KEYS):
            await stores.blocks.delete(keys[start : start + BATCH_KEYS])
        await stores.upkeep.forget_slices([slice_id for slice_id, _ in garbage])
        done.slices += len(garbage)
        done.size += sum(size for _, size in garbage if size < SLICE_MAX)
        progress(done.slices)
    return done


def _rounds(batches: int | None) -> Iterable[int]:
    return itertools.count() if batches is None else range(batches)
