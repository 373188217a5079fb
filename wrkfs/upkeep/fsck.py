"""Checks of a volume: its rows against the invariants of `meta/sql/schema.sql`.

Each check looks at one moment, also while mounts write; they are no one transaction together,
because a volume's role may not hold one for long. `scrub` verifies blocks, `repair` mends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wrkfs.meta.postgres.snapshot import Snapshot, connected, moment

if TYPE_CHECKING:
    from collections.abc import Callable

    from wrkfs.config import VolumeConfig
    from wrkfs.meta.postgres.snapshot import Finding

LIMIT = 100
"""Breaches told of one invariant: a broken volume may have millions."""


async def check(
    config: VolumeConfig,
    *,
    limit: int = LIMIT,
    progress: Callable[[int, int], None] | None = None,
) -> list[Finding]:
    """Breaches of all invariants, by number; [] for a clean volume.

    `progress(done, all)` is told after each invariant. Unavailable, StorageError.
    """
    findings: list[Finding] = []
    async with connected(config) as connection:
        numbers = await Snapshot(connection).invariants()
        for done, number in enumerate(numbers, 1):
            async with moment(connection) as snapshot:
                findings += await snapshot.check(number, limit)
            if progress is not None:
                progress(done, len(numbers))
    return findings
