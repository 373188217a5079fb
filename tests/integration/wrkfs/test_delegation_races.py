"""Races of write delegations with recalls, leases and deaths, which tests/model found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from wrkfs.meta.delegations.store import DelegatedMeta
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.types import ROOT_INO, Caller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.harness.volumes.metastore import InPostgres
    from wrkfs.types import Attr, Ino

ALICE = Caller(1000, 1000)


@pytest_asyncio.fixture
async def other(pg_volume: InPostgres) -> PostgresMeta:
    """A session without leases, like that of the HTTP API."""
    return await pg_volume.session()


@pytest.fixture
def store(pg_volume: InPostgres) -> PostgresMeta:
    """The database behind `meta`."""
    return PostgresMeta(pg_volume.config, leases=True, delegates=True)


@pytest_asyncio.fixture
async def meta(
    store: PostgresMeta, pg_volume: InPostgres, tmp_path: Path
) -> AsyncIterator[DelegatedMeta]:
    """A session with delegations."""
    made = DelegatedMeta(store, pg_volume.config.schema, tmp_path / "journals")
    await made.start()
    yield made
    await made.close()


async def test_a_recall_before_the_answer_of_mkdir_ends_the_delegation(
    meta: DelegatedMeta, store: PostgresMeta, other: PostgresMeta, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = store.mkdir

    async def late(parent: Ino, name: bytes, mode: int, caller: Caller) -> Attr:
        attr = await mkdir(parent, name, mode, caller)
        assert await other.readdir(attr.ino, 0, 10) == []
        return attr

    monkeypatch.setattr(store, "mkdir", late)
    home = await meta.mkdir(ROOT_INO, b"home", 0o755, ALICE)
    made, _ = await meta.create(home.ino, b"f", 0o644, ALICE, exclusive=True)
    assert (await other.lookup(home.ino, b"f")).ino == made.attr.ino
