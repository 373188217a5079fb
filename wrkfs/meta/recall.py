"""Gets back all that sessions keep by lease, for who has changed rows without asking for it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from wrkfs.errors import Unavailable

if TYPE_CHECKING:
    import asyncpg

PATIENCE = 15.0
"""Seconds in which some lease must come back: a mount that is gone has its own for 6."""
PAUSE = 0.02
"""Seconds between two looks at what has come back."""


async def recall(connection: asyncpg.Connection, *, patience: float = PATIENCE) -> None:
    """Returns when nobody keeps anything from before this call.

    Unavailable when for `patience` seconds no lease has been given back.
    """
    before = await connection.fetchval("SELECT clock_timestamp()")
    least, until = None, 0.0
    while True:
        (row,) = await connection.fetch("SELECT * FROM wrkfs.recall_before($1)", before)
        left, holders = row
        if not left:
            return
        now = time.monotonic()
        if least is None or left < least:
            least, until = left, now + patience
        elif now > until:
            raise Unavailable(
                f"the repair is done, but sessions {', '.join(map(str, holders))} do not give back"
                f" {left} directories that they keep: what they show may be from before it."
                " End these mounts, and repair again"
            )
        await asyncio.sleep(PAUSE)
