"""Volumes of workspaces on a real database and store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import pytest

from boxd.embedded.objectstore import EmbeddedObjectServer
from boxd.store.postgres.store import PostgresStore
from boxd.workspaces.credentials import ObjectStorage, StoreTarget
from boxd.workspaces.provision import Provisioner
from boxd.workspaces.seal import Sealer
from boxd.workspaces.volumes import Volumes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.harness.servers.objectserver import ObjectServer


class World:
    """The parts of volumes, with a switch for the failure of each step."""

    def __init__(self, dsn: str, server: ObjectServer, master: Path) -> None:
        self.dsn = dsn
        self.issuer = EmbeddedObjectServer(server.directory)
        self.store = PostgresStore(dsn)
        self.provisioner = Provisioner(dsn)
        self.sealer = Sealer(master)
        endpoint = server.endpoint
        self.target = StoreTarget(endpoint.url, endpoint.bucket, endpoint.region)

    def volumes(self) -> Volumes:
        """Return a store of volumes on these parts."""
        storage = ObjectStorage(self.target, self.issuer)
        return Volumes(self.store, self.provisioner, storage, self.sealer)

    async def traces(self) -> tuple[list[str], list[str], list[tuple[str, str]], int]:
        """Return roles, schemas, credentials and rows of volumes."""
        connection = await asyncpg.connect(self.dsn)
        try:
            # Roles belong to the whole cluster, so only those with access to this database count.
            roles = await connection.fetch(
                "SELECT rolname FROM pg_roles WHERE rolname ~ '^v[0-9a-f]{32}$' "
                "AND has_database_privilege(rolname, current_database(), 'CONNECT')"
            )
            schemas = await connection.fetch(
                "SELECT nspname FROM pg_namespace WHERE nspname ~ '^v[0-9a-f]{32}$'"
            )
        finally:
            await connection.close()
        rows = len(await self.store.list_volumes())
        return (
            [row[0] for row in roles],
            [row[0] for row in schemas],
            await self.issuer.credentials(),
            rows,
        )


@pytest.fixture
async def world(
    pg_database: str, objectserver: ObjectServer, tmp_path: Path
) -> AsyncIterator[World]:
    """Yield a `World` on a new database."""
    world = World(pg_database, objectserver, tmp_path / "master.key")
    await world.store.start()
    await world.provisioner.prepare()
    yield world
    await world.store.close()
