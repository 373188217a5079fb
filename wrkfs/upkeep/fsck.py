"""Checks the rows of a volume against the invariants of `meta/sql/schema.sql`.

Each check reads one snapshot, even while mounts write. The checks do not share one transaction,
because a volume's role must not keep a transaction open for long. `scrub` verifies blocks, `repair`
repairs rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wrkfs.meta.postgres.snapshot import Snapshot, connected, moment

if TYPE_CHECKING:
    from collections.abc import Callable

    from wrkfs.config import VolumeConfig
    from wrkfs.meta.postgres.snapshot import Finding

LIMIT = 100
"""Maximum number of reported breaches of one invariant: a damaged volume may have millions."""


async def check(
    config: VolumeConfig,
    *,
    limit: int = LIMIT,
    progress: Callable[[int, int], None] | None = None,
) -> list[Finding]:
    """Return breaches of all invariants, sorted by invariant; [] for a clean volume.

    Calls `progress(number of checks done, number of checks)` after each check. Raises Unavailable,
    StorageError.
    """
    findings: list[Finding] = []
    async with connected(config) as connection:
        numbers = await Snapshot(connection).invariants()
        for count, number in enumerate(numbers, 1):
            async with moment(connection) as snapshot:
                findings += await snapshot.check(number, limit)
            if progress is not None:
                progress(count, len(numbers))
    return findings
