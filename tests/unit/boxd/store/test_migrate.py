"""Migrations of the control schema on a real PostgreSQL."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

import asyncpg
import pytest

from boxd.errors import Unavailable
from boxd.store.migrate import migrate, migrations

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    Connection = asyncpg.Connection[asyncpg.Record]

_COLUMNS = """
    SELECT table_name, column_name, data_type, is_nullable, column_default
    FROM information_schema.columns WHERE table_schema = 'boxd' ORDER BY 1, 2
"""
_RULES = """
    SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'boxd'::regnamespace
    UNION ALL
    SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'boxd' ORDER BY 1, 2, 3
"""


@pytest.fixture
async def connection(pg_database: str) -> AsyncIterator[Connection]:
    """A superuser's connection to an empty database."""
    opened = await asyncpg.connect(pg_database)
    try:
        yield opened
    finally:
        await opened.close()


async def _shape(connection: Connection) -> tuple[list[asyncpg.Record], list[asyncpg.Record]]:
    return await connection.fetch(_COLUMNS), await connection.fetch(_RULES)


async def test_migrations_make_what_the_reference_says(connection: Connection) -> None:
    await migrate(connection)
    migrated = await _shape(connection)
    await connection.execute("DROP SCHEMA boxd CASCADE")
    reference = (resources.files("boxd.store") / "schema.sql").read_text(encoding="utf-8")
    await connection.execute(reference)
    assert migrated == await _shape(connection)
    assert migrated[0]


async def test_second_run_applies_nothing(connection: Connection) -> None:
    assert await migrate(connection) == [one.name for one in migrations()]
    assert await migrate(connection) == []


async def test_newer_schema_is_refused(connection: Connection) -> None:
    await migrate(connection)
    await connection.execute("INSERT INTO boxd.migration (version, name) VALUES (9999, 'later')")
    with pytest.raises(Unavailable, match="newer boxd"):
        await migrate(connection)


async def test_public_cannot_use_the_schema(connection: Connection) -> None:
    await migrate(connection)
    await connection.execute("CREATE ROLE boxd_test_outsider")
    try:
        for privilege in ("USAGE", "CREATE"):
            assert not await connection.fetchval(
                "SELECT has_schema_privilege('boxd_test_outsider', 'boxd', $1)", privilege
            )
    finally:
        await connection.execute("DROP ROLE boxd_test_outsider")


async def test_boxes_of_the_first_schema_are_kept(connection: Connection) -> None:
    """Their state began with the migration, they have no caps of their own, and egress to all."""
    first, *_ = migrations()
    await connection.execute("CREATE SCHEMA boxd")
    await connection.execute(
        "CREATE TABLE boxd.migration (version integer PRIMARY KEY, name text NOT NULL, "
        "applied timestamptz NOT NULL DEFAULT now())"
    )
    await connection.execute(first.sql)
    await connection.execute(
        "INSERT INTO boxd.migration (version, name) VALUES (1, $1)", first.name
    )
    await connection.execute(
        "INSERT INTO boxd.box (id, owner, name, image, flavor, cpus, mem_mb, state, detail, "
        "backend, host_key, created, ephemeral, drive) VALUES (repeat('a', 32), 'SHA256:alice', "
        "'web', 'debian', 'small', 1, 512, 'running', '', 'runc', 'key', now(), false, true)"
    )
    await migrate(connection)
    row = await connection.fetchrow("SELECT *, now() - since AS age FROM boxd.box")
    assert row is not None
    assert row["age"].total_seconds() < 3600
    told = {name: row[name] for name in ("step", "memory", "egress", "disk_mb", "pids", "durable")}
    assert told == {
        "step": 0,
        "memory": False,
        "egress": "all",
        "disk_mb": 0,
        "pids": 512,
        "durable": False,
    }
