"""One PostgreSQL and one object server for everybody who is measured in a run.

The cluster is the embedded one with its own settings; for the run it also listens on loopback,
because JuiceFS 0.14 cannot use a socket directory. Ours goes through loopback as well.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from boxd.embedded.objectstore import EmbeddedObjectServer
from boxd.embedded.postgres import EmbeddedPostgres
from boxd.workspaces.provision import Provisioner
from wrkfs.config import StoreConfig, VolumeConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Stores:
    """Where a run keeps metadata and data."""

    volume: VolumeConfig
    juicefs_meta: str
    juicefs_store: StoreConfig


@contextlib.asynccontextmanager
async def stores(directory: Path) -> AsyncIterator[Stores]:
    """Starts both, makes a volume for each side, and stops both afterwards."""
    postgres = EmbeddedPostgres(directory / "postgres")
    objects = EmbeddedObjectServer(directory / "objects")
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(postgres.stop)
        address = await _listen_on_loopback(postgres)
        endpoint = await objects.start()
        stack.push_async_callback(objects.stop)

        async def credential() -> StoreConfig:
            prefix = f"v{secrets.token_hex(16)}"
            key, secret = await objects.issue(prefix)
            return StoreConfig(
                endpoint.url, endpoint.bucket, prefix, endpoint.region, key, secret.reveal()
            )

        provisioner = Provisioner(postgres.dsn())
        await provisioner.prepare()
        role, password = await provisioner.create()
        dsn = f"postgresql://{role}:{password.reveal()}@{address}/boxd"
        volume = VolumeConfig(volume=role, schema=role, meta_dsn=dsn, store=await credential())
        peer = await _juicefs_database(postgres.dsn())
        # JuiceFS names its objects below the volume's name, which is given as the prefix.
        yield Stores(volume, f"postgres://{peer}@{address}/juicefs", await credential())


async def _listen_on_loopback(postgres: EmbeddedPostgres) -> str:
    """Starts the cluster so that it also listens on 127.0.0.1; gives `host:port`."""
    dsn = await postgres.start()
    await _execute(dsn, "ALTER SYSTEM SET listen_addresses = '127.0.0.1'")
    await postgres.stop()
    dsn = await postgres.start()
    with (postgres.data / "pg_hba.conf").open("a", encoding="utf-8") as file:
        file.write("host all all 127.0.0.1/32 scram-sha-256\n")
    await _execute(dsn, "SELECT pg_reload_conf()")
    return f"127.0.0.1:{await _execute(dsn, 'SHOW port')}"


async def _juicefs_database(dsn: str) -> str:
    """A role and its database; gives `user:password`."""
    password = secrets.token_hex(16)
    await _execute(dsn, f"CREATE ROLE juicefs LOGIN PASSWORD '{password}'")
    await _execute(dsn, "CREATE DATABASE juicefs OWNER juicefs")
    return f"juicefs:{password}"


async def _execute(dsn: str, statement: str) -> object:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()
