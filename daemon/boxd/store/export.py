"""All rows of the control schema as JSON of one moment, and back into an empty database.

Rows travel as PostgreSQL writes them in JSON, table by table as the catalogue names them, so that
a new table is in every backup without a word here. They go back into a schema of the version they
were written under, which is then migrated as at any start.
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
_FAILURES = (
    ConnectionError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
BATCH = 500
"""Rows in one INSERT, and in one answer."""
_FORMS = """
    SET LOCAL TimeZone = 'UTC'; SET LOCAL IntervalStyle = 'postgres'; SET LOCAL DateStyle = 'ISO';
    SET LOCAL bytea_output = 'hex'; SET LOCAL extra_float_digits = 1;
"""
"""So that text means the same on both sides, whatever the servers' defaults are."""
_TABLES = """
    SELECT relname::text AS name, format('boxd.%I', relname) AS quoted FROM pg_class
    WHERE relnamespace = 'boxd'::regnamespace AND relkind = 'r' AND relname <> 'migration'
    ORDER BY relname
"""
_EXPORT = "SELECT to_json(t)::text AS row FROM TABLE AS t"
_IMPORT = "INSERT INTO TABLE SELECT * FROM json_populate_recordset(NULL::TABLE, $1)"


@dataclass(frozen=True, slots=True)
class Moment:
    """The control database at one moment. Ends with the context that gave it."""

    connection: Connection
    schema: int
    instance: str
    tables: dict[str, str]
    """Names, and as SQL writes them."""

    async def rows(self) -> AsyncIterator[tuple[str, str]]:
        """Every row of every table: table, and the row as a JSON object."""
        for table, quoted in self.tables.items():
            query = _EXPORT.replace("TABLE", quoted)
            async for found in self.connection.cursor(query, prefetch=BATCH):
                yield table, found["row"]


@asynccontextmanager
async def moment(dsn: str) -> AsyncIterator[Moment]:
    """One consistent moment of the control database. Unavailable: no server, or no service."""
    async with (
        _connection(dsn) as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        await connection.execute(_FORMS)
        instance = await _instance(connection)
        if not instance:
            raise Unavailable("the database holds no service yet: run `boxd serve` first")
        schema = await connection.fetchval("SELECT max(version) FROM boxd.migration")
        if schema > len(migrations()):
            raise Unavailable(
                f"the control database has schema version {schema}, this boxd knows "
                f"{len(migrations())}: use a newer boxd"
            )
        yield Moment(connection, schema, instance, await _tables(connection))


@dataclass(frozen=True, slots=True)
class Lost:
    """What rows named and is not there any more."""

    boxes: int
    """Boxes whose disk was lost; they are kept and start anew."""
    snapshots: int
    drives: int
    """Volumes whose metadata or objects are gone; they begin empty."""


class Import:
    """Fills the control schema of one database inside one transaction; see `importing`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._tables: dict[str, str] = {}
        self._waiting: list[str] = []
        self._table = ""

    async def make_schema(self, version: int) -> None:
        """Makes the schema as of a version. Conflict when the database holds a service already."""
        instance = await _instance(self._connection)
        if instance is not None:
            raise Conflict(
                f"the database holds a service already (instance {instance[:8]}): give another "
                "--meta-dsn-file; if it is this backup's own service, whose machine was lost, add "
                "--keep-database: its rows are newer and stay, only the keys come back"
            )
        await migrate(self._connection, upto=version)
        self._tables = await _tables(self._connection)

    async def expect(self, instance: str) -> None:
        """For rows that are there already. Conflict when they are of another service."""
        if await _instance(self._connection) != instance:
            raise Conflict(
                "the database does not hold the service of this backup: give the "
                "--meta-dsn-file of that service, or leave --keep-database out"
            )

    async def add(self, table: str, row: str) -> None:
        """Adds a row. Unavailable when the schema has no such table or the row does not fit."""
        if table not in self._tables:
            raise Unavailable(f"the backup has rows of a table {table!r}, which is not known here")
        if table != self._table or len(self._waiting) >= BATCH:
            await self._flush()
            self._table = table
        self._waiting.append(row)

    async def finish(self) -> None:
        """After the last row: brings the schema up to date."""
        await self._flush()
        await migrate(self._connection)

    async def without_host(
        self, detail: str, now: datetime, *, objects: bool, settings: Sequence[str]
    ) -> Lost:
        """Says of everything that stood on the lost host that it is gone.

        Boxes sleep and tell `detail`; unfinished and throw-away ones are forgotten, and snapshots.
        `objects`: the objects of volumes are still where they were; a volume is then kept if its
        role and schema are in this database too. `settings`: names of those that tell of the host.
        """
        do = self._connection.execute
        await do("DELETE FROM boxd.setting WHERE name = ANY ($1)", list(settings))
        await do("DELETE FROM boxd.box WHERE ephemeral OR state = 'creating'")
        boxes = await do(
            "UPDATE boxd.box SET state = 'suspended', detail = $1, since = $2, step = 0, "
            "memory = false, idle_since = NULL",
            detail,
            now,
        )
        snapshots = await do("DELETE FROM boxd.snapshot")
        drives = await do(
            "DELETE FROM boxd.volume WHERE NOT $1 "
            "OR NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) "
            "OR NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = schema)",
            objects,
        )
        return Lost(*(int(tag.split()[-1]) for tag in (boxes, snapshots, drives)))

    async def _flush(self) -> None:
        rows, self._waiting = self._waiting, []
        if rows:
            query = _IMPORT.replace("TABLE", self._tables[self._table])
            await self._connection.execute(query, f"[{','.join(rows)}]")


@asynccontextmanager
async def importing(dsn: str) -> AsyncIterator[Import]:
    """All of it is there when the context ends well, else nothing. Unavailable, Conflict."""
    async with _connection(dsn) as connection, connection.transaction():
        await connection.execute(_FORMS)
        yield Import(connection)


async def drop_service(dsn: str) -> None:
    """Takes back an import that came too early. Unavailable."""
    async with _connection(dsn) as connection:
        await connection.execute("DROP SCHEMA IF EXISTS boxd CASCADE")


async def _instance(connection: Connection) -> str | None:
    """Of the service in the database; '' when it has none, None when there is no service."""
    if not await connection.fetchval("SELECT to_regclass('boxd.setting') IS NOT NULL"):
        return None
    found = await connection.fetchval("SELECT value FROM boxd.setting WHERE name = 'instance'")
    return found or ""


async def _tables(connection: Connection) -> dict[str, str]:
    return {row["name"]: row["quoted"] for row in await connection.fetch(_TABLES)}


@asynccontextmanager
async def _connection(dsn: str) -> AsyncIterator[Connection]:
    """A connection of our own; what it raises within becomes Unavailable."""
    try:
        connection = await asyncpg.connect(
            dsn,
            timeout=CONNECT_TIMEOUT,
            command_timeout=STATEMENT_TIMEOUT,
            server_settings={"application_name": "boxd backup"},
        )
    except (OSError, *_FAILURES) as error:
        raise _failed(error) from error
    try:
        yield connection
    except _FAILURES as error:
        raise _failed(error) from error
    finally:
        try:
            await connection.close(timeout=CONNECT_TIMEOUT)
        except (OSError, *_FAILURES):
            connection.terminate()


def _failed(error: BaseException) -> Unavailable:
    """Without the server's own words: they may quote a row."""
    return Unavailable(
        f"the control database failed ({type(error).__name__}): look whether PostgreSQL runs"
    )
