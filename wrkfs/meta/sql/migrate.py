"""Installs the SQL functions, and creates or migrates the tables of a volume.

The daemon's role runs this. Migrations only go forward: `migrations/NNNN_*.sql`, in order, each in
its own transaction, with the schema of the volume as search path. `volume.schema_version` is the
number of the last one applied.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncpg

HERE = Path(__file__).parent
_LOCK = 0x77726B6673
"""Advisory lock that lets one installer or migration run at a time."""
TRASH_SECONDS = 24 * 3600
"""Default number of seconds for which removed files can be restored."""

_GRANTS = {
    "SELECT": ("volume",),
    "SELECT, UPDATE": ("counter", "usage", "upkeep"),
    "SELECT, INSERT, UPDATE, DELETE": (
        "inode",
        "dentry",
        "slice",
        "inline",
        "symlink",
        "xattr",
        "session",
        "lease",
        "recall",
        "delegation",
        "reservation",
        "lock_file",
        "file_lock",
        "lock_waiter",
        "sustained",
        "deleted",
        "slice_range",
        "trash",
        "removed_link",
        "shared_slice",
        "snapshot",
        "op_result",
    ),
}
"""All rights of a volume's role on the tables of its schema."""


class MigrationError(Exception):
    """The database has a newer schema than this release knows."""


async def install_functions(conn: asyncpg.Connection) -> None:
    """Install the functions of this release in schema `wrkfs`, unless they are there already.

    The functions are SECURITY INVOKER (except `has_ended`) and have no rights of their own, so
    PUBLIC may call them. A grant for each volume would make one catalogue row grow with the number
    of volumes.
    """
    text = _functions()
    release = hashlib.sha256(text.encode()).hexdigest()
    async with conn.transaction():
        await conn.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        if await conn.fetchval("SELECT to_regclass('wrkfs.release')") is not None:
            if await conn.fetchval("SELECT digest FROM wrkfs.release") == release:
                return
            await conn.execute("DROP SCHEMA wrkfs CASCADE")
        await conn.execute(text)
        await conn.execute("INSERT INTO wrkfs.release (digest) VALUES ($1)", release)


async def remove_functions(conn: asyncpg.Connection) -> None:
    """Remove the functions until the next `install_functions`. Idempotent.

    Running mounts wait meanwhile. So functions of one release never work on tables of another.
    """
    async with conn.transaction():
        await conn.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        await conn.execute("DROP SCHEMA IF EXISTS wrkfs CASCADE")


async def is_outdated(conn: asyncpg.Connection, schema: str) -> bool:
    """Return True if an older release wrote the volume.

    Raises MigrationError if a newer one did.
    """
    newest = max(_migrations())
    version = await _version(conn, _quote(schema))
    if version > newest:
        raise MigrationError(f"schema version {version} is newer than {newest}")
    return version < newest


async def create_volume_schema(
    conn: asyncpg.Connection,
    schema: str,
    role: str,
    *,
    bytes_limit: int | None = None,
    inodes_limit: int | None = None,
    trash_seconds: int = TRASH_SECONDS,
) -> None:
    """Create the tables of a new volume and grant `role` its exact rights, all or nothing.

    The search path of the role becomes the schema. The limits are the quota of the volume (None:
    unlimited). `trash_seconds` is the time for which removed files can be restored; 0 turns the
    trash off.
    """
    quoted, grantee = _quote(schema), _quote(role)
    async with conn.transaction():
        await conn.execute(f"CREATE SCHEMA {quoted}")
        await migrate_volume(conn, schema)
        await conn.execute(
            f"UPDATE {quoted}.volume SET bytes_limit = $1, inodes_limit = $2, trash_seconds = $3",  # noqa: S608 quoted identifier
            bytes_limit,
            inodes_limit,
            trash_seconds,
        )
        await conn.execute(f"GRANT USAGE ON SCHEMA {quoted} TO {grantee}")
        await _grant(conn, quoted, grantee)
        await conn.execute(f"ALTER ROLE {grantee} SET search_path = {quoted}")


async def update_volume(conn: asyncpg.Connection, schema: str, role: str) -> bool:
    """Migrate a volume and the rights of its role to this release. Return True if it was older.

    Raises MigrationError if a newer release wrote the volume.
    """
    quoted = _quote(schema)
    async with conn.transaction():
        before = await _version(conn, quoted)
        after = await migrate_volume(conn, schema)
        if after != before:
            await _grant(conn, quoted, _quote(role))
    return after != before


async def _version(conn: asyncpg.Connection, quoted: str) -> int:
    version: int = await conn.fetchval(f"SELECT schema_version FROM {quoted}.volume")  # noqa: S608 quoted identifier
    return version


async def _grant(conn: asyncpg.Connection, quoted: str, grantee: str) -> None:
    for rights, tables in _GRANTS.items():
        names = ", ".join(f"{quoted}.{table}" for table in tables)
        await conn.execute(f"GRANT {rights} ON {names} TO {grantee}")


async def migrate_volume(conn: asyncpg.Connection, schema: str) -> int:
    """Apply the migrations that a volume lacks. Return its new schema version.

    Raises MigrationError if a newer release wrote the volume.
    """
    quoted = _quote(schema)
    migrations = _migrations()
    async with conn.transaction():
        await conn.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        await conn.execute(f"SET LOCAL search_path = {quoted}")
        version = 0
        if await conn.fetchval("SELECT to_regclass('volume')") is not None:
            version = await conn.fetchval("SELECT schema_version FROM volume")
        if version > max(migrations):
            raise MigrationError(f"schema version {version} is newer than {max(migrations)}")
        for number in range(version + 1, max(migrations) + 1):
            await conn.execute(migrations[number].read_text(encoding="utf-8"))
            await conn.execute("UPDATE volume SET schema_version = $1", number)
        await conn.execute("SET LOCAL search_path = DEFAULT")
    return max(migrations)


def _functions() -> str:
    files = sorted((HERE / "functions").glob("*.sql"))
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def _migrations() -> dict[int, Path]:
    return {int(file.name[:4]): file for file in (HERE / "migrations").glob("[0-9]*_*.sql")}


def _quote(identifier: str) -> str:
    """Return a SQL identifier in quotes.

    Raises ValueError for names that provisioning never uses.
    """
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", identifier):
        raise ValueError(f"invalid name of a schema or role: {identifier!r}")
    return f'"{identifier}"'
