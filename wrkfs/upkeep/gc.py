"""Garbage collection: deletes the objects of slices that no file uses.

Rows identify garbage; collection does not list the bucket. Garbage are slices without a ref
(`deleted`), and ids that ended sessions reserved and did not commit (`slice_range`). An error ends
the round. The rows stay, so the next round continues. Two rounds may run at the same time.
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
"""Time for which objects stay after the removal of their last ref, for reads in progress: a layout
is at most as old as the longest call (90 s). Snapshots protect their objects by a hold."""
BATCH_SLICES = 500
BATCH_KEYS = 1000
"""Maximum number of objects that one request deletes (S3's limit)."""
BATCH_RANGES = 16


@dataclass(slots=True)
class CollectionResult:
    """The result of a round.

    `slices`: number of slices whose objects were deleted. `size`: bytes of these objects, as far as
    known. `orphans`: number of uncommitted ids of ended sessions that became garbage.
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
) -> CollectionResult:
    """Delete the objects of all current garbage. Safe while the volume is in use.

    `batches` is the maximum number of batches, for callers that have other work. Calls
    `progress(number of slices)` after each batch. StorageError and Unavailable end the round early;
    the next round continues.
    """
    stores = fs.stores
    result = CollectionResult()
    for _ in _rounds(batches):
        ranges, ids = await stores.upkeep.adopt_orphans(grace, BATCH_RANGES, SLICE_MAX)
        result.orphans += ids
        if not ranges or (batches is not None and result.orphans >= batches * BATCH_SLICES):
            break
    for _ in _rounds(batches):
        garbage = await stores.upkeep.garbage(grace, BATCH_SLICES)
        if not garbage:
            break
        # A crash of the database must not restore the refs of these slices.
        await stores.meta.sync()
        keys = [
            block_key(stores.prefix, slice_id, index)
            for slice_id, size in garbage
            for index in range(block_count(min(size, SLICE_MAX)) or 1)
        ]
        for start in range(0, len(keys), BATCH_KEYS):
            await stores.blocks.delete(keys[start : start + BATCH_KEYS])
        await stores.upkeep.forget_slices([slice_id for slice_id, _ in garbage])
        result.slices += len(garbage)
        result.size += sum(size for _, size in garbage if size < SLICE_MAX)
        progress(result.slices)
    return result


def _rounds(batches: int | None) -> Iterable[int]:
    return itertools.count() if batches is None else range(batches)
