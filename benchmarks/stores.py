"""One PostgreSQL and one object server for all file systems of a run.

The cluster is the embedded one with its usual settings. It also listens on loopback, because
JuiceFS cannot use a socket directory; our mount uses loopback, too. Both servers are separate
processes. A thread starts and stops them, so the code of measurements stays synchronous.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg

from boxd.embedded.objectstore import EmbeddedObjectServer
from boxd.embedded.postgres import EmbeddedPostgres
from boxd.embedded.process import processes_in
from boxd.workspaces.provision import Provisioner
from wrkfs.config import StoreConfig, VolumeConfig

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence
    from pathlib import Path

    from boxd.embedded.objectstore import ObjectEndpoint

Answer = TypeVar("Answer")


class Stores:
    """The stores of a run for metadata and data."""

    def __init__(self, directory: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stores", daemon=True)
        self._thread.start()
        self._postgres = EmbeddedPostgres(directory / "postgres")
        self._objects = EmbeddedObjectServer(directory / "objects")
        self._provisioner: Provisioner | None = None
        self._address = ""
        self._endpoint: ObjectEndpoint | None = None

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Run a coroutine in the thread of the stores; return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def volume(self) -> VolumeConfig:
        """Create a volume of the drive."""
        return self.run(self._volume())

    def credential(self) -> StoreConfig:
        """Create a prefix in the object store, and keys for only that prefix."""
        return self.run(self._credential())

    def whole_bucket(self) -> StoreConfig:
        """Return the administrator's keys, which open the whole bucket."""
        at = self._endpoint
        assert at is not None
        return StoreConfig(at.url, at.bucket, "", at.region, at.access_key, at.secret.reveal())

    def database(self, name: str, statements: Sequence[str] = ()) -> str:
        """Create a role and a database, and execute `statements` there; return `postgres://...`."""
        return self.run(self._database(name, statements))

    def database_pids(self) -> list[int]:
        """Return the pids of PostgreSQL."""
        return processes_in(self._postgres.data, "postgres")

    def close(self) -> None:
        """Stop both servers."""
        self.run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def start(self) -> None:
        """Start both servers, and prepare the database for volumes."""
        self._address = await _listen_on_loopback(self._postgres)
        self._endpoint = await self._objects.start()
        self._provisioner = Provisioner(self._postgres.dsn())
        await self._provisioner.prepare()

    async def _stop(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._postgres.stop)
            stack.push_async_callback(self._objects.stop)

    async def _volume(self) -> VolumeConfig:
        assert self._provisioner is not None
        role, password = await self._provisioner.create()
        dsn = f"postgresql://{role}:{password.reveal()}@{self._address}/boxd"
        store = await self._credential()
        return VolumeConfig(volume=role, schema=role, meta_dsn=dsn, store=store)

    async def _credential(self) -> StoreConfig:
        assert self._endpoint is not None
        url, bucket, region = self._endpoint.url, self._endpoint.bucket, self._endpoint.region
        prefix = f"v{secrets.token_hex(16)}"
        key, secret = await self._objects.issue(prefix)
        return StoreConfig(url, bucket, prefix, region, key, secret.reveal())

    async def _database(self, name: str, statements: Sequence[str]) -> str:
        password = secrets.token_hex(16)
        dsn = self._postgres.dsn()
        await _execute(dsn, f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
        await _execute(dsn, f"CREATE DATABASE {name} OWNER {name}")
        for statement in statements:
            await _execute(dsn, statement, database=name)
        return f"postgres://{name}:{password}@{self._address}/{name}"


@contextlib.contextmanager
def stores(directory: Path) -> Iterator[Stores]:
    """Run both servers while the context lasts."""
    made = Stores(directory)
    try:
        made.run(made.start())
        yield made
    finally:
        made.close()


async def _listen_on_loopback(postgres: EmbeddedPostgres) -> str:
    """Start the cluster so that it also listens on 127.0.0.1; return `host:port`."""
    dsn = await postgres.start()
    await _execute(dsn, "ALTER SYSTEM SET listen_addresses = '127.0.0.1'")
    await postgres.stop()
    dsn = await postgres.start()
    with (postgres.data / "pg_hba.conf").open("a", encoding="utf-8") as file:
        file.write("host all all 127.0.0.1/32 scram-sha-256\n")
    await _execute(dsn, "SELECT pg_reload_conf()")
    return f"127.0.0.1:{await _execute(dsn, 'SHOW port')}"


async def _execute(dsn: str, statement: str, *, database: str | None = None) -> object:
    connection = await asyncpg.connect(dsn, database=database)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()
