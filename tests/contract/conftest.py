"""What several contracts need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from boxd.store.postgres.store import PostgresStore
from tests.doubles.control_store import MemoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.store.interface import ControlStore


@pytest.fixture(params=["memory", "postgres"])
async def control_store(request: pytest.FixtureRequest) -> AsyncIterator[ControlStore]:
    """A fresh control store of each kind."""
    made: ControlStore
    if request.param == "memory":
        made = MemoryStore()
    else:
        made = PostgresStore(request.getfixturevalue("pg_database"))
    await made.start()
    try:
        yield made
    finally:
        await made.close()
