"""Holds the batches of a volume back in the database, so that changes stay unsent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

import asyncpg

if TYPE_CHECKING:
    from wrkfs.config import VolumeConfig


class HeldBatches:
    """From the creation to `end`, no batch is applied. Other calls are."""

    def __init__(self, database: str, volume: VolumeConfig) -> None:
        """`database` is the superuser's DSN."""
        self._runner = asyncio.Runner()
        self._volume = volume
        path = {"search_path": f'"{volume.schema}"'}
        self._connection = self._runner.run(asyncpg.connect(database, server_settings=path))
        self._runner.run(self._connection.execute("BEGIN"))
        query = "SELECT 1 FROM op_result WHERE slot = 0 FOR UPDATE"
        self._runner.run(self._connection.execute(query))

    def end(self) -> None:
        """Let the batches pass. The server may be dead."""
        self._runner.run(self._end())
        self._runner.close()

    def drop(self) -> None:
        """End the connections of the volume, so that the database forgets the batches."""
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1"
        self._runner.run(self._connection.execute(query, self._volume.schema))

    async def _end(self) -> None:
        self._connection.terminate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
