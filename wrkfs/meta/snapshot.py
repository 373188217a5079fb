"""A volume's rows at one moment: for `fsck` and `dump`, which read all of them.

One connection of its own, in one REPEATABLE READ transaction. It registers no session and takes no
locks, so nobody waits for it.
"""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import asyncpg

from wrkfs.errors import StorageError, Unavailable
from wrkfs.meta.links import CONNECT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from wrkfs.config import VolumeConfig

Connection: TypeAlias = asyncpg.Connection

BATCH = 1000
"""Rows fetched at once."""
SETTINGS = {"application_name": "wrkfs", "jit": "off"}
CHECK = "SELECT ino, name, detail FROM wrkfs.check_NUMBER($1)"
NUMBERED = re.compile(r"check_([0-9]+)")


@dataclass(frozen=True, slots=True)
class Finding:
    """One breach of an invariant. `ino` is 0 and `name` None where they mean nothing."""

    invariant: int
    ino: int
    name: bytes | None
    detail: str


class Snapshot:
    """All rows of a volume, as they were when it was opened."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def invariants(self) -> list[int]:
        """Numbers of the invariants that the installed functions check."""
        names = await self._connection.fetch(
            "SELECT p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace "
            "WHERE n.nspname = 'wrkfs'"
        )
        found = (NUMBERED.fullmatch(name) for (name,) in names)
        return sorted(int(match[1]) for match in found if match)

    async def check(self, invariant: int, limit: int) -> list[Finding]:
        """Up to `limit` breaches of one invariant."""
        query = CHECK.replace("NUMBER", str(int(invariant)))
        rows = await self._connection.fetch(query, limit)
        return [Finding(invariant, ino, name, detail) for ino, name, detail in rows]

    async def batches(self, query: str) -> AsyncIterator[list[asyncpg.Record]]:
        """The rows of a query, at most BATCH at once: memory stays the same for any number."""
        cursor = await self._connection.cursor(query)
        while batch := await cursor.fetch(BATCH):
            yield batch


@asynccontextmanager
async def open_snapshot(config: VolumeConfig) -> AsyncIterator[Snapshot]:
    """The volume as it is now. Unavailable; StorageError for refusals of the database."""
    async with connected(config) as connection, moment(connection) as snapshot:
        yield snapshot


@asynccontextmanager
async def moment(connection: Connection) -> AsyncIterator[Snapshot]:
    """The volume as it is now, on a connection that does nothing else meanwhile."""
    transaction = connection.transaction(isolation="repeatable_read", readonly=True)
    await transaction.start()
    try:
        yield Snapshot(connection)
    finally:
        if not connection.is_closed():
            await transaction.rollback()


@asynccontextmanager
async def connected(config: VolumeConfig) -> AsyncIterator[asyncpg.Connection]:
    """A connection in the volume's schema; errors are translated."""
    settings = {**SETTINGS, "search_path": f'"{config.schema}"'}
    try:
        connection = await asyncpg.connect(
            config.meta_dsn, server_settings=settings, timeout=CONNECT
        )
        try:
            yield connection
        finally:
            await connection.close(timeout=CONNECT)
    except asyncpg.AdminShutdownError as error:
        raise Unavailable(
            "metadata database: it ended the connection; a volume's role may not read for longer "
            "than 30 s at once: use credentials of a role that may"
        ) from error
    except (asyncpg.PostgresConnectionError, asyncpg.CannotConnectNowError, OSError) as error:
        raise Unavailable("metadata database") from error
    except (asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise Unavailable("metadata database: connection lost") from error
    except asyncpg.PostgresError as error:
        raise StorageError(f"metadata database refused: {error.sqlstate}") from error
