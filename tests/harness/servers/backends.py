"""Server processes of a volume. They may still execute requests of a process that was killed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg

from tests.harness.loop import run

if TYPE_CHECKING:
    from wrkfs.config import VolumeConfig

LONGEST = 30.0
PAUSE = 0.005


def wait_for_the_dead(volume: VolumeConfig) -> None:
    """Return when the database has finished the requests of killed processes.

    A call in flight changes the volume when it ends, possibly after the next look at it. No other
    process may use the volume meanwhile.
    """
    run(_wait(volume))


async def _wait(volume: VolumeConfig) -> None:
    """Wait until the volume has no connections."""
    connection = await asyncpg.connect(volume.meta_dsn)
    query = "SELECT pid FROM pg_stat_activity WHERE usename = $1 AND pid <> pg_backend_pid()"
    try:
        async with asyncio.timeout(LONGEST):
            while True:
                if not await connection.fetch(query, volume.schema):
                    return
                await asyncio.sleep(PAUSE)
    finally:
        await connection.close()
