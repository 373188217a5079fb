"""Repairs breaches that `fsck` reports, if that loses no byte of a file with a name.

The order of the steps matters: counters first, then sessions and leftovers, names, links, bytes;
usage last.
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
    "shares",
    "trash",
    "slices",
    "symlinks",
    "snapshots",
    "delegations",
    "use",
)
"""Functions `wrkfs.repair_<step>`, each one transaction."""


async def repair(
    config: VolumeConfig, *, progress: Callable[[int, int], None] | None = None
) -> dict[str, int]:
    """Return the number of rows that each step repaired, without steps that repaired none.

    The volume may be in use. Mounts wait for locks, and a recall drops all that they have cached.
    Raises StorageError, and Unavailable, for example if a mount does not answer the recall.
    """
    repaired: dict[str, int] = {}
    async with connected(config) as connection:
        for number, step in enumerate(STEPS, 1):
            count = await connection.fetchval(f"SELECT wrkfs.repair_{step}()")
            if count:
                repaired[step] = count
            if progress is not None:
                progress(number, len(STEPS))
        await recall(connection)
    return repaired
