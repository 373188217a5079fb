"""Contract of `MetaStore`, pages of the trash, the newest entry first: memory and PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from tests.harness.volumes.metastore import let_go
from wrkfs.types import ROOT_INO, Caller, Ino, TrashPosition

if TYPE_CHECKING:
    from tests.harness.volumes.metastore import MetaVolume
    from wrkfs.meta.interface.store import MetaStore
    from wrkfs.types import TrashEntry

ME = Caller(1000, 1001)
NAMES = [b"%d" % number for number in range(7)]


@pytest.fixture
async def meta(meta_volume: MetaVolume) -> MetaStore:
    """A session on a volume whose trash has the files NAMES."""
    await meta_volume.keep_trash()
    meta = await meta_volume.session()
    for name in NAMES:
        ino = (await meta.create(ROOT_INO, name, 0o640, ME, exclusive=True))[0].attr.ino
        await let_go(meta, ino)
        await meta.unlink(ROOT_INO, name)
    return meta


async def pages(meta: MetaStore, limit: int) -> list[TrashEntry]:
    """All entries, read in pages of `limit`."""
    seen: list[TrashEntry] = []
    while page := await meta.upkeep.list_trash_back(seen[-1].position if seen else None, limit):
        assert len(page) <= limit
        seen += page
    return seen


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
async def test_pages_neither_skip_nor_repeat(meta: MetaStore, limit: int) -> None:
    assert [entry.name for entry in await pages(meta, limit)] == NAMES[::-1]


async def test_both_directions_have_the_same_entries(meta: MetaStore) -> None:
    await meta.link(await _file(meta, b"one"), ROOT_INO, b"two")
    await meta.unlink(ROOT_INO, b"two")
    forward = await meta.upkeep.list_trash(None, 100)
    assert await pages(meta, 2) == forward[::-1]
    assert forward[-1].linked


async def test_a_position_outlives_its_entry(meta: MetaStore) -> None:
    first, second = await meta.upkeep.list_trash_back(None, 2)
    await meta.restore(first.ino, ROOT_INO, b"back")
    await meta.restore(second.ino, ROOT_INO, b"also back")
    rest = await meta.upkeep.list_trash_back(second.position, 100)
    assert [entry.name for entry in rest] == NAMES[4::-1]


async def test_a_position_may_lie_outside_the_list(meta: MetaStore) -> None:
    dawn = TrashPosition(datetime(1, 1, 1, tzinfo=UTC), Ino(0), Ino(0), b"")
    dusk = TrashPosition(datetime(9999, 12, 31, tzinfo=UTC), Ino(2**63 - 1), Ino(1), b"\xff" * 255)
    assert await meta.upkeep.list_trash_back(dawn, 10) == []
    assert len(await meta.upkeep.list_trash_back(dusk, 10)) == len(NAMES)


async def _file(meta: MetaStore, name: bytes) -> Ino:
    ino = (await meta.create(ROOT_INO, name, 0o640, ME, exclusive=True))[0].attr.ino
    await let_go(meta, ino)
    return ino
