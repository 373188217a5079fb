"""Server processes of a volume: what a process that was killed has asked for may still be done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from tests.harness.drive import until
from tests.harness.loop import run

if TYPE_CHECKING:
    from wrkfs.config import VolumeConfig


def wait_for_the_dead(volume: VolumeConfig) -> None:
    """Returns when the database has done, and let go of, what killed processes asked for.

    A call that was on its way changes the volume when it ends, be it after the next look at it.
    Nobody else may use the volume.
    """
    until(lambda: not run(_backends(volume)))


async def _backends(volume: VolumeConfig) -> set[int]:
    """Pids of the volume's connections."""
    connection = await asyncpg.connect(volume.meta_dsn)
    try:
        rows = await connection.fetch(
            "SELECT pid FROM pg_stat_activity WHERE usename = $1 AND pid <> pg_backend_pid()",
            volume.schema,
        )
        return {row[0] for row in rows}
    finally:
        await connection.close()
