"""Checks of a volume: its rows against the invariants of `meta/schema.sql`.

All checks look at one moment, also while mounts write. What `data` and `repair` add stands in
`scrub` and `repair`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wrkfs.meta.snapshot import open_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from wrkfs.config import VolumeConfig
    from wrkfs.meta.snapshot import Finding

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
    async with open_snapshot(config) as snapshot:
        numbers = await snapshot.invariants()
        for done, number in enumerate(numbers, 1):
            findings += await snapshot.check(number, limit)
            if progress is not None:
                progress(done, len(numbers))
    return findings
