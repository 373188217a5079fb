"""Sessions of the tests of delegations: one that has them, and one that needs what it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from wrkfs.meta.delegations.store import DelegatedMeta
from wrkfs.meta.postgres.store import PostgresMeta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.harness.volumes.metastore import InPostgres


@pytest_asyncio.fixture
async def other(pg_volume: InPostgres) -> PostgresMeta:
    """Return a session without leases, like that of the HTTP API."""
    return await pg_volume.session()


@pytest.fixture
def store(pg_volume: InPostgres) -> PostgresMeta:
    """Return the database behind `meta`."""
    return PostgresMeta(pg_volume.config, leases=True, delegates=True)


@pytest_asyncio.fixture
async def meta(
    store: PostgresMeta, pg_volume: InPostgres, tmp_path: Path
) -> AsyncIterator[DelegatedMeta]:
    """Yield a session with delegations."""
    session = DelegatedMeta(store, pg_volume.config.schema, tmp_path / "journals")
    await session.start()
    yield session
    await session.close()
