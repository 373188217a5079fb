"""Mends what `fsck` found, where that gives up no byte that some name shows.

The order matters: numbers first, then sessions and leftovers, names, links, bytes, use at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wrkfs.meta.postgres.recall import recall
from wrkfs.meta.postgres.snapshot import connected

if TYPE_CHECKING:
    from collections.abc import Callable

    from wrkfs.config import VolumeConfig

STEPS = (
    "counters",
    "sessions",
    "leftovers",
    "entries",
    "parents",
    "nameless",
    "links",
    "refs",
    "holes",
    "trash",
    "slices",
    "symlinks",
    "use",
)
"""Functions `wrkfs.repair_<step>`, each one transaction."""


async def repair(
    config: VolumeConfig, *, progress: Callable[[int, int], None] | None = None
) -> dict[str, int]:
    """How many rows each step mended; steps that mended none are left out.

    Mounts may be at work: they wait for locks at most, and give back what they keep from before.
    Unavailable, also when one does not; StorageError.
    """
    mended: dict[str, int] = {}
    async with connected(config) as connection:
        for done, step in enumerate(STEPS, 1):
            count = await connection.fetchval(f"SELECT wrkfs.repair_{step}()")
            if count:
                mended[step] = count
            if progress is not None:
                progress(done, len(STEPS))
        await recall(connection)
    return mended
