"""Forward-only migrations of the control database."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

from boxd.errors import Unavailable

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.pool import PoolConnectionProxy

    Connection = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]

_LOCK = 0x626F7864  # "boxd" in ASCII; serialises daemons that start at the same time


class Migration(NamedTuple):
    """One file in migrations/."""

    version: int
    name: str
    sql: str


def migrations() -> list[Migration]:
    """Return all migrations, in order. Raises ValueError if their numbers have gaps."""
    files = [
        Migration(int(file.name.split("_", 1)[0]), file.name, file.read_text(encoding="utf-8"))
        for file in (resources.files("boxd.store") / "migrations").iterdir()
        if file.name.endswith(".sql")
    ]
    files.sort()
    if [file.version for file in files] != list(range(1, len(files) + 1)):
        raise ValueError(f"the migrations have gaps: {[file.name for file in files]}")
    return files


async def migrate(connection: Connection, *, upto: int | None = None) -> list[str]:
    """Apply the missing migrations in one transaction; return their names.

    `upto`: the last version to apply, for rows of an older version; None: all versions.
    Raises Unavailable if a newer version of the service has migrated the database.
    """
    available = migrations()
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        await _create_ledger(connection)
        current = await connection.fetchval("SELECT max(version) FROM boxd.migration") or 0
        if current > len(available):
            raise Unavailable(
                f"the control database has schema version {current}, but this boxd supports only "
                f"versions up to {len(available)}: start a newer boxd"
            )
        missing = available[current:upto]
        for migration in missing:
            await connection.execute(migration.sql)
            await connection.execute(
                "INSERT INTO boxd.migration (version, name) VALUES ($1, $2)",
                migration.version,
                migration.name,
            )
    return [migration.name for migration in missing]


async def _create_ledger(connection: Connection) -> None:
    """Create the schema and the table of applied migrations if they are missing."""
    # CREATE IF NOT EXISTS would print a NOTICE for each existing object.
    if await connection.fetchval("SELECT to_regclass('boxd.migration') IS NOT NULL"):
        return
    await connection.execute(
        """
        CREATE SCHEMA boxd;
        REVOKE ALL ON SCHEMA boxd FROM PUBLIC;
        CREATE TABLE boxd.migration (
            version integer PRIMARY KEY,
            name text NOT NULL,
            applied timestamptz NOT NULL DEFAULT now()
        );
        """
    )
