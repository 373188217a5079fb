"""Forward-only migrations of the control-plane schema."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

from boxd.errors import Unavailable

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.pool import PoolConnectionProxy

    Connection = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]

_LOCK = 0x626F7864  # "boxd"; serialises daemons that start at the same time


class Migration(NamedTuple):
    """One file of migrations/."""

    version: int
    name: str
    sql: str


def migrations() -> list[Migration]:
    """All known migrations, in order. The numbers have no gaps."""
    found = [
        Migration(int(file.name.split("_", 1)[0]), file.name, file.read_text(encoding="utf-8"))
        for file in (resources.files("boxd.store") / "migrations").iterdir()
        if file.name.endswith(".sql")
    ]
    found.sort()
    if [one.version for one in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations with gaps: {[one.name for one in found]}")
    return found


async def migrate(connection: Connection, *, upto: int | None = None) -> list[str]:
    """Applies what is missing, all or nothing; returns the names of what it applied.

    `upto`: the last version wanted, for rows that were written under it; None: all.
    Raises Unavailable when the database was written by a newer version of the service.
    """
    known = migrations()
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        await _make_ledger(connection)
        present = await connection.fetchval("SELECT max(version) FROM boxd.migration") or 0
        if present > len(known):
            raise Unavailable(
                f"the control database has schema version {present}, this boxd knows "
                f"{len(known)}: start a newer boxd"
            )
        wanted = known[present:upto]
        for migration in wanted:
            await connection.execute(migration.sql)
            await connection.execute(
                "INSERT INTO boxd.migration (version, name) VALUES ($1, $2)",
                migration.version,
                migration.name,
            )
    return [one.name for one in wanted]


async def _make_ledger(connection: Connection) -> None:
    """Schema and ledger. Looks first: CREATE IF NOT EXISTS says a NOTICE when they are there."""
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
