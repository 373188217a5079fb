"""Contract of `MetaStore`, holes of files and access times: runs on memory and on PostgreSQL."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.harness.volumes.extents import Objects
from wrkfs.errors import Fenced
from wrkfs.layout import CHUNK_SIZE, KIB
from wrkfs.types import ROOT_INO, Caller, Commit, Ino, SetAttr

if TYPE_CHECKING:
    from tests.harness.volumes.metastore import MetaVolume
    from wrkfs.meta.interface.store import MetaStore

ME = Caller(1000, 1001)


async def opened(meta: MetaStore) -> Ino:
    return (await meta.create(ROOT_INO, b"f", 0o644, ME, exclusive=True))[0].attr.ino


async def test_holes_are_what_was_never_written(meta: MetaStore, other: MetaStore) -> None:
    objects = Objects()
    file = await opened(meta)

    async def put(pos: int, size: int) -> int:
        extent = objects.stored(pos, bytes(size))
        return (await meta.commit(Commit(file, (extent,), durable=False))).holes

    assert await put(0, 100) == 0
    assert await put(50, 100) == 0
    assert await put(1000, 24) == 850
    assert await put(100, 100) == 800, "half of it covers what was written before"
    assert await put(CHUNK_SIZE - 10, 30) == 800 + CHUNK_SIZE - 10 - 1024
    assert (await other.getattr(file)).holes == 800 + CHUNK_SIZE - 10 - 1024
    assert await put(0, CHUNK_SIZE + 20) == 0


async def test_cutting_and_growing_counts_holes(meta: MetaStore) -> None:
    objects = Objects()
    file = await opened(meta)
    assert (await meta.setattr(file, SetAttr(size=1 << 40))).holes == 1 << 40
    extents = (objects.inline(10, b"x" * 10), objects.inline(40, b"x" * 10))
    assert (await meta.commit(Commit(file, extents))).holes == (1 << 40) - 20
    assert (await meta.setattr(file, SetAttr(size=45))).holes == 30
    assert (await meta.setattr(file, SetAttr(size=45))).holes == 30
    assert (await meta.setattr(file, SetAttr(size=30))).holes == 20
    assert (await meta.setattr(file, SetAttr(size=60))).holes == 50
    appended = Commit(file, (objects.inline(5, b"x"),), append=True)
    assert (await meta.commit(appended)).holes == 55
    assert (await meta.open(file, truncate=True)).attr.holes == 0


@pytest.mark.parametrize("seed", range(4))
async def test_holes_agree_with_the_map(meta: MetaStore, seed: int) -> None:
    chance = random.Random(seed)
    objects = Objects()
    file = await opened(meta)
    for _ in range(60):
        pos = chance.choice((0, CHUNK_SIZE)) + chance.randrange(-20, 40) * KIB
        size = chance.randrange(1, 12 * KIB)
        if chance.random() < 0.2:
            await meta.setattr(file, SetAttr(size=max(pos, 0)))
        else:
            make = chance.choice((objects.stored, objects.inline))
            await meta.commit(Commit(file, (make(max(pos, 0), bytes(size)),), durable=False))
        found = await meta.file_map(file)
        written = bytearray(found.attr.size)
        for ref in found.refs:
            written[ref.pos : ref.pos + ref.length] = b"\1" * ref.length
        assert found.attr.holes == written.count(0)


async def test_access_times_move_forward_alone(meta: MetaStore, other: MetaStore) -> None:
    file = await opened(meta)
    before = await meta.setattr(file, SetAttr(atime_ns=1000))
    await meta.touch({file: 2000, Ino(1 << 60): 5})
    after = await other.getattr(file)
    assert after.atime_ns == 2000
    assert (after.mtime_ns, after.ctime_ns, after.version) == (
        before.mtime_ns,
        before.ctime_ns,
        before.version,
    )
    await other.touch({file: 1500})
    assert (await meta.getattr(file)).atime_ns == 2000


async def test_a_fenced_session_moves_no_access_time(
    meta_volume: MetaVolume, meta: MetaStore, other: MetaStore
) -> None:
    file = await opened(other)
    await other.setattr(file, SetAttr(atime_ns=1))
    await meta_volume.fence(meta)
    with pytest.raises(Fenced):
        await meta.touch({file: 2000})
    assert (await other.getattr(file)).atime_ns == 1
