"""Fixtures `pg` and `pg_database`: a real private PostgreSQL cluster for the test run."""

from __future__ import annotations

import secrets
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest

from boxd.embedded.postgres import EmbeddedPostgres
from boxd.embedded.postgres_settings import DATABASE, host_based_access
from tests.harness.loop import run

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def pg() -> Iterator[str]:
    """Yield the superuser's DSN of database `boxd` in a private cluster of this worker.

    Roles may log in to every database here, so that tests can have new ones. The server does not
    wait for the disk, because its data ends with the run. Tests that kill a server use `cluster`.
    """
    with tempfile.TemporaryDirectory(prefix="boxd-pg-") as name:
        directory = Path(name) / "postgres"
        try:
            yield run(_start(directory))
        finally:
            run(EmbeddedPostgres(directory).stop())


@pytest.fixture
def pg_database(pg: str) -> Iterator[str]:
    """Yield the superuser's DSN of a new, empty database; drop it afterwards."""
    with fresh_database(pg) as dsn:
        yield dsn


@contextmanager
def fresh_database(pg: str) -> Iterator[str]:
    """Yield a database like `pg_database`, for tests that need two."""
    name = f"test_{secrets.token_hex(8)}"
    run(_execute(pg, f"CREATE DATABASE {name} TEMPLATE template0"))
    try:
        yield pg.replace(f"@/{DATABASE}?", f"@/{name}?")
    finally:
        run(_execute(pg, f"DROP DATABASE {name} WITH (FORCE)"))


async def _start(directory: Path) -> str:
    server = EmbeddedPostgres(directory)
    dsn = await server.start()
    (server.data / "pg_hba.conf").write_text(
        "local all all scram-sha-256\n" + host_based_access(), encoding="utf-8"
    )
    await server.detach()
    await _execute(dsn, "ALTER SYSTEM SET fsync = off")
    await _execute(dsn, "SELECT pg_reload_conf()")
    return dsn


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
