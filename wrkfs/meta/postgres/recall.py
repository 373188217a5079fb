"""Recalls all leases, after a tool has changed rows without recalling them first."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from wrkfs.errors import Unavailable

if TYPE_CHECKING:
    import asyncpg

PATIENCE = 15.0
"""Seconds in which at least one lease must be returned. A dead mount holds its leases for 6 s."""
PAUSE = 0.02
"""Seconds between two checks."""


async def recall(connection: asyncpg.Connection, *, patience: float = PATIENCE) -> None:
    """Wait until no session caches anything from before this call.

    Raises Unavailable if no lease is returned for `patience` seconds.
    """
    before = await connection.fetchval("SELECT clock_timestamp()")
    least, until = None, 0.0
    while True:
        (row,) = await connection.fetch("SELECT * FROM wrkfs.recall_before($1)", before)
        remaining, holders = row
        if not remaining:
            return
        now = time.monotonic()
        if least is None or remaining < least:
            least, until = remaining, now + patience
        elif now > until:
            raise Unavailable(
                f"the repair is done, but sessions {', '.join(map(str, holders))} do not give back"
                f" leases on {remaining} directories, so they may show names and attributes from"
                " before the repair. Unmount these drives, and repair again"
            )
        await asyncio.sleep(PAUSE)
