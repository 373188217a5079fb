"""Server processes of a volume: what a process that was killed has asked for may still be done."""

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
    """Returns when the database has done, and let go of, what killed processes asked for.

    A call that was on its way changes the volume when it ends, be it after the next look at it.
    Nobody else may use the volume.
    """
    run(_wait(volume))


async def _wait(volume: VolumeConfig) -> None:
    """Looks at the volume's connections until there is none."""
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
