"""Export all rows of the control database as JSON, and import them into an empty database.

PostgreSQL writes the rows as JSON and reads them back. The catalog lists the tables, so backups
include new tables without a change here. An import creates the schema of the exported version,
adds the rows, and then migrates the schema.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from boxd.errors import Conflict, Unavailable
from boxd.store.migrate import migrate, migrations

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from datetime import datetime

    Connection = asyncpg.Connection[asyncpg.Record]

CONNECT_TIMEOUT = 10.0
STATEMENT_TIMEOUT = 60.0
_DATABASE_ERRORS = (
    ConnectionError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
BATCH = 500
"""Rows in one INSERT, and in one fetch of a cursor."""
_SESSION_FORMATS = """
    SET LOCAL TimeZone = 'UTC'; SET LOCAL IntervalStyle = 'postgres'; SET LOCAL DateStyle = 'ISO';
    SET LOCAL bytea_output = 'hex'; SET LOCAL extra_float_digits = 1;
"""
"""Fixed text formats, so that the defaults of the two servers do not matter."""
_TABLES = """
    SELECT relname::text AS name, format('boxd.%I', relname) AS quoted FROM pg_class
    WHERE relnamespace = 'boxd'::regnamespace AND relkind = 'r' AND relname <> 'migration'
    ORDER BY relname
"""
_EXPORT = "SELECT to_json(t)::text AS row FROM TABLE AS t"
_IMPORT = "INSERT INTO TABLE SELECT * FROM json_populate_recordset(NULL::TABLE, $1)"


@dataclass(frozen=True, slots=True)
class DatabaseSnapshot:
    """A consistent view of the control database, valid inside `open_snapshot`."""

    connection: Connection
    schema: int
    instance: str
    tables: dict[str, str]
    """Table names, and the same names quoted for SQL."""

    async def rows(self) -> AsyncIterator[tuple[str, str]]:
        """Yield each row of each table: the name of the table, and the row as a JSON object."""
        for table, quoted in self.tables.items():
            query = _EXPORT.replace("TABLE", quoted)
            async for record in self.connection.cursor(query, prefetch=BATCH):
                yield table, record["row"]


@asynccontextmanager
async def open_snapshot(dsn: str) -> AsyncIterator[DatabaseSnapshot]:
    """Open a consistent view of the control database.

    Raises Unavailable if the server does not answer, or the database has no supported service.
    """
    async with (
        _connection(dsn) as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        await connection.execute(_SESSION_FORMATS)
        instance = await _instance(connection)
        if not instance:
            raise Unavailable("the database has no service yet: run `boxd serve` first")
        schema = await connection.fetchval("SELECT max(version) FROM boxd.migration")
        if schema > len(migrations()):
            raise Unavailable(
                f"the control database has schema version {schema}, but this boxd supports only "
                f"versions up to {len(migrations())}: use a newer boxd"
            )
        yield DatabaseSnapshot(connection, schema, instance, await _tables(connection))


@dataclass(frozen=True, slots=True)
class HostLosses:
    """Numbers of objects in the backup that no longer exist."""

    boxes: int
    """Boxes whose disk was lost. Their rows stay, and they start with a new disk."""
    snapshots: int
    drives: int
    """Volumes whose metadata or objects were lost. The drives start empty."""


class Import:
    """Fills the schema of one control database in one transaction, inside `importing`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._tables: dict[str, str] = {}
        self._batch: list[str] = []
        self._table = ""

    async def create_schema(self, version: int) -> None:
        """Create the schema of a version. Raises Conflict if the database already has a service."""
        instance = await _instance(self._connection)
        if instance is not None:
            raise Conflict(
                f"the database already has a service (instance {instance[:8]}): give another "
                "--meta-dsn-file. If this backup is of the same service, whose host was lost, add "
                "--keep-database: the newer rows stay, and only the keys are restored"
            )
        await migrate(self._connection, upto=version)
        self._tables = await _tables(self._connection)

    async def check_instance(self, instance: str) -> None:
        """Check the existing rows. Raises Conflict if they belong to another service."""
        if await _instance(self._connection) != instance:
            raise Conflict(
                "the database does not have the service of this backup: give the "
                "--meta-dsn-file of that service, or omit --keep-database"
            )

    async def add(self, table: str, row: str) -> None:
        """Add a row. Raises Unavailable for an unknown table or a row that does not fit."""
        if table not in self._tables:
            raise Unavailable(
                f"the backup has rows of the table {table!r}, which this boxd does not know: use a "
                "newer boxd"
            )
        if table != self._table or len(self._batch) >= BATCH:
            await self._flush()
            self._table = table
        self._batch.append(row)

    async def finish(self) -> None:
        """Write the last rows, and migrate the schema."""
        await self._flush()
        await migrate(self._connection)

    async def discard_host_state(
        self, detail: str, now: datetime, *, objects: bool, settings: Sequence[str]
    ) -> HostLosses:
        """Update the rows about the lost host, its boxes, snapshots and drives.

        Boxes become suspended without memory, with `detail` as their detail. The method deletes
        ephemeral and unfinished boxes, and all snapshots. `objects`: the objects of the volumes
        still exist; then a volume stays if its role and schema exist in this database. `settings`:
        the names of the settings about the host, which it deletes.
        """
        execute = self._connection.execute
        await execute("DELETE FROM boxd.setting WHERE name = ANY ($1)", list(settings))
        await execute("DELETE FROM boxd.box WHERE ephemeral OR state = 'creating'")
        boxes = await execute(
            "UPDATE boxd.box SET state = 'suspended', detail = $1, since = $2, step = 0, "
            "memory = false, idle_since = NULL",
            detail,
            now,
        )
        snapshots = await execute("DELETE FROM boxd.snapshot")
        drives = await execute(
            "DELETE FROM boxd.volume WHERE NOT $1 "
            "OR NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) "
            "OR NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = schema)",
            objects,
        )
        return HostLosses(_row_count(boxes), _row_count(snapshots), _row_count(drives))

    async def _flush(self) -> None:
        rows, self._batch = self._batch, []
        if rows:
            query = _IMPORT.replace("TABLE", self._tables[self._table])
            await self._connection.execute(query, f"[{','.join(rows)}]")


@asynccontextmanager
async def importing(dsn: str) -> AsyncIterator[Import]:
    """Import into a database in one transaction, which commits if the context ends without error.

    Raises Unavailable and Conflict.
    """
    async with _connection(dsn) as connection, connection.transaction():
        await connection.execute(_SESSION_FORMATS)
        yield Import(connection)


async def drop_service(dsn: str) -> None:
    """Delete the schema again, to undo an import. Raises Unavailable."""
    async with _connection(dsn) as connection:
        await connection.execute("DROP SCHEMA IF EXISTS boxd CASCADE")


def _row_count(status: str) -> int:
    """Return the number of rows in the status of a statement, such as `UPDATE 3`."""
    return int(status.split()[-1])


async def _instance(connection: Connection) -> str | None:
    """Return the instance id of the service; '' if it has no id, None if there is no service."""
    if not await connection.fetchval("SELECT to_regclass('boxd.setting') IS NOT NULL"):
        return None
    instance = await connection.fetchval("SELECT value FROM boxd.setting WHERE name = 'instance'")
    return instance or ""


async def _tables(connection: Connection) -> dict[str, str]:
    return {row["name"]: row["quoted"] for row in await connection.fetch(_TABLES)}


@asynccontextmanager
async def _connection(dsn: str) -> AsyncIterator[Connection]:
    """Open a connection. Errors of the connection inside the context become Unavailable."""
    try:
        connection = await asyncpg.connect(
            dsn,
            timeout=CONNECT_TIMEOUT,
            command_timeout=STATEMENT_TIMEOUT,
            server_settings={"application_name": "boxd backup"},
        )
    except (OSError, *_DATABASE_ERRORS) as error:
        raise _unavailable(error) from error
    try:
        yield connection
    except _DATABASE_ERRORS as error:
        raise _unavailable(error) from error
    finally:
        try:
            await connection.close(timeout=CONNECT_TIMEOUT)
        except (OSError, *_DATABASE_ERRORS):
            connection.terminate()


def _unavailable(error: BaseException) -> Unavailable:
    # The text of the server's error is left out, because it may contain a row.
    return Unavailable(
        f"the control database failed ({type(error).__name__}): check that PostgreSQL is running"
    )
