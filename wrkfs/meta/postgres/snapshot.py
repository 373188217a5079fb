"""All rows of a volume at one moment, for `fsck` and `dump`.

A snapshot uses a connection of its own and one REPEATABLE READ transaction. It registers no session
and takes no locks, so no session waits for it.
"""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import asyncpg

from wrkfs.errors import StorageError, Unavailable
from wrkfs.meta.postgres.links import CONNECT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from wrkfs.config import VolumeConfig

Connection: TypeAlias = asyncpg.Connection

BATCH = 1000
"""Number of rows in one fetch."""
SETTINGS = {"application_name": "wrkfs", "jit": "off"}
CHECK = "SELECT ino, name, detail FROM wrkfs.check_NUMBER($1)"
NUMBERED = re.compile(r"check_([0-9]+)")


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation of an invariant. `ino` is 0 and `name` is None where they do not apply."""

    invariant: int
    ino: int
    name: bytes | None
    detail: str


class Snapshot:
    """All rows of a volume at the moment when the snapshot was opened."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def invariants(self) -> list[int]:
        """Return the numbers of the invariants that the installed functions check."""
        names = await self._connection.fetch(
            "SELECT p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace "
            "WHERE n.nspname = 'wrkfs'"
        )
        matches = (NUMBERED.fullmatch(name) for (name,) in names)
        return sorted(int(match[1]) for match in matches if match)

    async def check(self, invariant: int, limit: int) -> list[Finding]:
        """Return up to `limit` violations of one invariant."""
        query = CHECK.replace("NUMBER", str(int(invariant)))
        rows = await self._connection.fetch(query, limit)
        return [Finding(invariant, ino, name, detail) for ino, name, detail in rows]

    async def batches(self, query: str) -> AsyncIterator[list[asyncpg.Record]]:
        """Yield the rows of a query in batches of at most BATCH, so memory use stays constant."""
        cursor = await self._connection.cursor(query)
        while batch := await cursor.fetch(BATCH):
            yield batch


@asynccontextmanager
async def open_snapshot(config: VolumeConfig) -> AsyncIterator[Snapshot]:
    """Open a snapshot of the volume.

    Raises Unavailable, and StorageError if the database refuses a query.
    """
    async with connected(config) as connection, moment(connection) as snapshot:
        yield snapshot


@asynccontextmanager
async def moment(connection: Connection) -> AsyncIterator[Snapshot]:
    """Open a snapshot on a connection that must run nothing else meanwhile."""
    transaction = connection.transaction(isolation="repeatable_read", readonly=True)
    await transaction.start()
    try:
        yield Snapshot(connection)
    finally:
        if not connection.is_closed():
            await transaction.rollback()


@asynccontextmanager
async def connected(config: VolumeConfig) -> AsyncIterator[asyncpg.Connection]:
    """Connect with the volume's schema as search path, and translate the errors of the body."""
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
            "metadata database: the server ended the connection. The role of a volume may not run "
            "a query for more than 30 s; use the credentials of a role that may"
        ) from error
    except (asyncpg.PostgresConnectionError, asyncpg.CannotConnectNowError, OSError) as error:
        raise Unavailable("metadata database") from error
    except (asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise Unavailable("metadata database: connection lost") from error
    except asyncpg.PostgresError as error:
        raise StorageError(f"metadata database refused: {error.sqlstate}") from error
