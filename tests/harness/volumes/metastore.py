"""Fixtures `meta_volume` and `pg_volume`: an empty volume's metadata, in memory or PostgreSQL."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Protocol, cast
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest_asyncio

from tests.doubles.meta_store import MemoryMeta
from tests.doubles.meta_volume import MemoryVolume
from wrkfs.config import StoreConfig, VolumeConfig
from wrkfs.meta.delegations.store import DelegatedMeta
from wrkfs.meta.leases.store import LeasedMeta
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.meta.sql.migrate import create_volume_schema, install_functions
from wrkfs.upkeep import fsck

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import pytest

    from wrkfs.meta.interface.files import FileStore
    from wrkfs.meta.interface.store import MetaStore
    from wrkfs.types import Ino


class MetaVolume(Protocol):
    """An empty volume for sessions, which the test closes."""

    async def session(self) -> MetaStore:
        """Return a new, started session."""
        ...

    async def limit(self, bytes_limit: int | None, inodes_limit: int | None) -> None:
        """Set the quota."""
        ...

    async def freed_slices(self) -> set[int]:
        """Return the slices of the object store that wait for garbage collection."""
        ...

    async def keep_trash(self, seconds: int = 3600) -> None:
        """Keep removed files from now on; the default keeps none."""
        ...

    async def fence(self, session: MetaStore) -> None:
        """Fence a session as if its process were dead."""
        ...


class InMemory:
    """Implements `MetaVolume` on `MemoryMeta`."""

    def __init__(self) -> None:
        self.volume = MemoryVolume()

    async def session(self) -> MetaStore:
        meta = MemoryMeta(self.volume)
        await meta.start()
        return meta

    async def limit(self, bytes_limit: int | None, inodes_limit: int | None) -> None:
        self.volume.bytes_limit, self.volume.inodes_limit = bytes_limit, inodes_limit

    async def freed_slices(self) -> set[int]:
        return set(self.volume.freed_slices)

    async def keep_trash(self, seconds: int = 3600) -> None:
        self.volume.trash_seconds = seconds

    async def fence(self, session: MetaStore) -> None:
        self.volume.fence(session.session)


class InPostgres:
    """Implements `MetaVolume` on `PostgresMeta`: a role and a schema in the test's cluster.

    At the end of a test the rows must satisfy all invariants; set `verify = False` for hostile
    rows.
    """

    def __init__(self, admin_dsn: str) -> None:
        name = "v" + secrets.token_hex(16)
        password = secrets.token_hex(16)
        parts = urlsplit(admin_dsn)
        at = parts.netloc.rpartition("@")[2]
        dsn = urlunsplit(parts._replace(netloc=f"{name}:{password}@{at}"))
        self._admin_dsn = admin_dsn
        self._password = password
        self._sessions: list[PostgresMeta | LeasedMeta | DelegatedMeta] = []
        self.verify = True
        self.config = VolumeConfig(name, name, dsn, StoreConfig("", "", "", "", "", ""))

    @property
    def schema(self) -> str:
        """Return the name of the volume's schema and role."""
        return self.config.schema

    async def admin(self) -> asyncpg.Connection:
        """Return a superuser's connection with the volume's search path; the caller closes it."""
        return await asyncpg.connect(
            self._admin_dsn, server_settings={"search_path": f'"{self.schema}"'}
        )

    async def make(self) -> None:
        """Create role, functions and tables."""
        conn = await self.admin()
        try:
            await install_functions(conn)
            await conn.execute(f"CREATE ROLE {self.schema} LOGIN PASSWORD '{self._password}'")
            database = await conn.fetchval("SELECT current_database()")
            await conn.execute(f'GRANT CONNECT ON DATABASE "{database}" TO {self.schema}')
            await create_volume_schema(conn, self.schema, self.schema, trash_seconds=0)
        finally:
            await conn.close()

    async def drop(self) -> None:
        """Close all sessions and remove role and tables."""
        for meta in self._sessions:
            await meta.close()
        broken = await self.broken_invariants() if self.verify else []
        conn = await self.admin()
        try:
            await conn.execute(f"DROP SCHEMA {self.schema} CASCADE")
            await conn.execute(f"DROP OWNED BY {self.schema}; DROP ROLE {self.schema}")
        finally:
            await conn.close()
        assert not broken, f"the rows break {broken}"

    async def session(self) -> PostgresMeta:
        meta = PostgresMeta(self.config)
        self._sessions.append(meta)
        await meta.start()
        return meta

    async def rows(self, query: str, *args: object) -> list[asyncpg.Record]:
        """Return a superuser's answer to a query in the volume's schema."""
        conn = await self.admin()
        try:
            found: list[asyncpg.Record] = await conn.fetch(query, *args)
            return found
        finally:
            await conn.close()

    async def broken_invariants(self) -> list[str]:
        """Return broken invariants of schema.sql, except I16, because tests make up slice ids."""
        found = await fsck.check(self.config, limit=5)
        return [f"I{one.invariant}: {one}" for one in found if one.invariant != 16]

    async def limit(self, bytes_limit: int | None, inodes_limit: int | None) -> None:
        await self.rows(
            "UPDATE volume SET bytes_limit = $1, inodes_limit = $2", bytes_limit, inodes_limit
        )

    async def freed_slices(self) -> set[int]:
        return {row[0] for row in await self.rows("SELECT slice_id FROM deleted")}

    async def keep_trash(self, seconds: int = 3600) -> None:
        await self.rows("UPDATE volume SET trash_seconds = $1", seconds)

    async def fence(self, session: MetaStore) -> None:
        helper = await self.session()
        await helper.fence(session.session, force=True)


@pytest_asyncio.fixture
async def pg_volume(pg: str) -> AsyncIterator[InPostgres]:
    """Yield an empty volume in PostgreSQL."""
    volume = InPostgres(pg)
    await volume.make()
    try:
        yield volume
    finally:
        await volume.drop()


class WithUpkeep:
    """Names and files of a leasing store, and upkeep of the store below it, in one object."""

    def __init__(self, store: PostgresMeta, leased: LeasedMeta | DelegatedMeta) -> None:
        self._store, self._leased = store, leased

    def __getattr__(self, name: str) -> object:
        return getattr(self._leased if hasattr(self._leased, name) else self._store, name)


class Leased(InPostgres):
    """Implements `MetaVolume` with sessions that cache under leases."""

    async def session(self) -> PostgresMeta:
        # Tests use only methods that this object has.
        return cast("PostgresMeta", WithUpkeep(*await self.pair()))

    async def pair(self) -> tuple[PostgresMeta, LeasedMeta]:
        """Return a new session: the store, and the leasing store above it."""
        store = PostgresMeta(self.config, leases=True)
        leased = LeasedMeta(store)
        self._sessions.append(leased)
        await leased.start()
        return store, leased

    async def fence(self, session: MetaStore) -> None:
        helper = await InPostgres.session(self)
        await helper.fence(session.session, force=True)


class Delegated(Leased):
    """Implements `MetaVolume` with sessions that take write delegations."""

    journals: Path

    async def session(self) -> PostgresMeta:
        store = PostgresMeta(self.config, leases=True, delegates=True)
        delegated = DelegatedMeta(store, self.schema, self.journals)
        self._sessions.append(delegated)
        await delegated.start()
        return cast("PostgresMeta", WithUpkeep(store, delegated))


@pytest_asyncio.fixture(params=["memory", "postgres", "leased", "delegated"])
async def meta_volume(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetaVolume]:
    """Yield an empty volume: in memory, in PostgreSQL, with leases, with delegations."""
    if request.param == "memory":
        yield InMemory()
        return
    kinds = {"postgres": InPostgres, "leased": Leased, "delegated": Delegated}
    volume = kinds[request.param](request.getfixturevalue("pg"))
    if isinstance(volume, Delegated):
        volume.journals = tmp_path / "journals"
    await volume.make()
    try:
        yield volume
    finally:
        await volume.drop()


@pytest_asyncio.fixture
async def meta(meta_volume: MetaVolume) -> MetaStore:
    """Return a session on `meta_volume`."""
    return await meta_volume.session()


@pytest_asyncio.fixture
async def other(meta_volume: MetaVolume) -> MetaStore:
    """Return another session on `meta_volume`."""
    return await meta_volume.session()


async def let_go(meta: FileStore, ino: Ino) -> None:
    """Release an inode and wait for the database: a query of the usage sends releases first."""
    await meta.release(ino)
    await meta.statfs()
