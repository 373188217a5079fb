"""Garbage collection on stores in memory."""

from __future__ import annotations

import os
import random
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.doubles import meta_store_upkeep
from tests.doubles.meta_store import MemoryMeta
from tests.unit.wrkfs.drive import content, create
from wrkfs.data.checksums import sums
from wrkfs.errors import QuotaExceeded, StorageError, Unavailable
from wrkfs.layout import BLOCK_SIZE, block_key
from wrkfs.types import ROOT_INO, Commit, Extent, SliceId
from wrkfs.upkeep import gc

if TYPE_CHECKING:
    from tests.unit.wrkfs.drive import Drive

NOW = timedelta(0)
BIG = bytes(range(256)) * 1024


async def test_objects_of_removed_and_replaced_bytes_go(drive: Drive) -> None:
    fs = await drive.mount()
    for name in (b"kept", b"cut", b"removed"):
        handle = await create(fs, name)
        await handle.write(0, BIG)
        await handle.close()
    again = await fs.open((await fs.lookup(ROOT_INO, b"cut")).ino, os.O_WRONLY | os.O_TRUNC)
    await again.write(0, BIG[::-1])
    await again.close()
    await fs.unlink(ROOT_INO, b"removed")
    assert len(drive.blocks.objects) == 4
    done = await gc.collect(fs, grace=NOW)
    assert (done.slices, done.size, done.orphans) == (2, 2 * len(BIG), 0)
    assert len(drive.blocks.objects) == 2
    assert await content(fs, b"kept") == BIG
    assert await content(fs, b"cut") == BIG[::-1]
    assert (await gc.collect(fs, grace=NOW)).slices == 0


async def test_nothing_young_goes(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs)
    await handle.write(0, BIG)
    await handle.close()
    await fs.unlink(ROOT_INO, b"file")
    assert (await gc.collect(fs)).slices == 0
    assert len(drive.blocks.objects) == 1


async def test_every_block_of_a_slice_goes(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs)
    await handle.write(0, bytes(2 * BLOCK_SIZE + 5))
    await handle.close()
    assert len(drive.blocks.objects) == 3
    await fs.unlink(ROOT_INO, b"file")
    counts: list[int] = []
    await gc.collect(fs, grace=NOW, progress=counts.append)
    assert drive.blocks.objects == {}
    assert counts == [1]


async def test_a_snapshot_holds_back_what_it_shows(drive: Drive) -> None:
    fs, other = await drive.mount(), await drive.mount()
    handle = await create(fs)
    await handle.write(0, BIG)
    await handle.close()
    snapshot = await fs.open_snapshot(handle.ino)
    await other.unlink(ROOT_INO, b"file")
    replaced = await create(other)
    await replaced.write(0, b"new")
    await replaced.close()
    assert (await gc.collect(other, grace=NOW)).slices == 0
    assert await snapshot.read(0, len(BIG)) == BIG
    await snapshot.close()
    assert (await gc.collect(other, grace=NOW)).slices == 1
    assert drive.blocks.objects == {}


async def test_a_snapshot_that_is_too_old_holds_back_nothing(drive: Drive) -> None:
    fs, other = await drive.mount(), await drive.mount()
    handle = await create(fs)
    await handle.write(0, BIG)
    await handle.close()
    fs.stores.holds.max_age = 0.0
    snapshot = await fs.open_snapshot(handle.ino)
    again = await other.open(handle.ino, os.O_WRONLY | os.O_TRUNC)
    await again.write(0, b"new")
    await again.close()
    assert (await gc.collect(other, grace=NOW)).slices == 1
    with pytest.raises(Unavailable):
        await snapshot.read(0, len(BIG))
    await snapshot.close()


async def test_a_hold_keeps_the_objects_of_its_beginning(drive: Drive) -> None:
    fs, other = await drive.mount(), await drive.mount()
    handle = await create(fs)
    await handle.write(0, BIG)
    await handle.close()
    with fs.hold():
        await other.unlink(ROOT_INO, b"file")
        assert (await gc.collect(other, grace=NOW)).slices == 0
    assert (await gc.collect(other, grace=NOW)).slices == 1


async def test_what_a_dead_session_stored_and_never_committed_goes(drive: Drive) -> None:
    fs, dead = await drive.mount(), MemoryMeta(drive.volume)
    await dead.start()
    kept = await create(fs)
    first = await dead.reserve_slices(10)
    for number in range(2):
        await drive.blocks.put(block_key("volume", SliceId(first + number), 0), BIG)
    extent = Extent(0, first, len(BIG), sums(BIG), None)
    await dead.commit(Commit(kept.ino, (extent,)))
    await kept.close()
    assert (await gc.collect(fs, grace=NOW)).orphans == 0
    await dead.close()
    assert (await gc.collect(fs)).orphans == 0
    done = await gc.collect(fs, grace=NOW)
    assert (done.orphans, done.slices) == (9, 9)
    assert list(drive.blocks.objects) == [block_key("volume", first, 0)]
    assert await content(fs) == BIG
    assert drive.volume.ranges == []


async def test_a_round_adopts_every_id_in_steps(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meta_store_upkeep, "ADOPTED", 10)
    fs, dead = await drive.mount(), MemoryMeta(drive.volume)
    await dead.start()
    await dead.reserve_slices(21)
    await dead.close()
    assert (await gc.collect(fs)).orphans == 0
    done = await gc.collect(fs, grace=NOW)
    assert (done.orphans, done.slices) == (21, 21)
    assert drive.volume.ranges == []


async def test_an_error_of_the_store_ends_the_round(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs)
    await handle.write(0, BIG)
    await handle.close()
    await fs.unlink(ROOT_INO, b"file")
    blocks = drive.blocks.attach()
    broken = await drive.mount(blocks)

    async def refuse(key: str) -> None:
        raise StorageError(f"no deleting of {key}")

    blocks.before_delete = refuse
    with pytest.raises(StorageError):
        await gc.collect(broken, grace=NOW)
    assert (await gc.collect(fs, grace=NOW)).slices == 1
    assert drive.blocks.objects == {}


async def test_a_commit_that_failed_gives_its_objects_back(drive: Drive) -> None:
    fs, other = await drive.mount(), await drive.mount()
    handle = await create(fs)
    await handle.write(0, bytes(BLOCK_SIZE))
    drive.volume.bytes_limit = 10
    with pytest.raises(QuotaExceeded):
        await handle.fsync()
    await handle.close()
    await fs.close()
    assert drive.volume.ranges == []
    await gc.collect(other, grace=NOW)
    assert drive.blocks.objects == {}


async def test_a_session_that_closes_leaves_no_ids_behind(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs)
    await handle.write(0, BIG)
    assert drive.volume.ranges != []
    await fs.close()
    assert drive.volume.ranges == []


async def test_what_makes_garbage_is_durable_before_objects_go(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = await drive.mount(drive.blocks)
    handle = await create(fs)
    await handle.write(0, BIG)
    await handle.close()
    await fs.unlink(ROOT_INO, b"file")
    sync, synced = fs.stores.meta.sync, 0

    async def counted() -> None:
        nonlocal synced
        await sync()
        synced += 1

    async def delete(_key: str) -> None:
        assert synced

    monkeypatch.setattr(fs.stores.meta, "sync", counted)
    drive.blocks.before_delete = delete
    assert (await gc.collect(fs, grace=NOW)).slices == 1


async def test_a_large_slice_goes_whole(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wrkfs.dirty.SLICE_MAX", 2 * BLOCK_SIZE)
    monkeypatch.setattr("wrkfs.writer.SLICE_MAX", 2 * BLOCK_SIZE)
    monkeypatch.setattr("wrkfs.upkeep.gc.SLICE_MAX", 2 * BLOCK_SIZE)
    fs = await drive.mount()
    data = random.Random(1).randbytes(3 * BLOCK_SIZE + 7)
    handle = await create(fs)
    await handle.write(0, data)
    await handle.close()
    appending = await fs.open(handle.ino, os.O_WRONLY | os.O_APPEND)
    for start in range(0, len(data), BLOCK_SIZE):
        await appending.write(0, data[start : start + BLOCK_SIZE])
    await appending.close()
    assert await content(fs) == data * 2
    refs = (await fs.file_map(handle.ino)).refs
    assert max(ref.size for ref in refs) <= 2 * BLOCK_SIZE
    await fs.unlink(ROOT_INO, b"file")
    await gc.collect(fs, grace=NOW)
    assert drive.blocks.objects == {}


async def test_a_row_that_names_a_slice_in_use_is_dropped(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs)
    await handle.write(0, BIG)
    await handle.close()
    (ref,) = (await fs.file_map(handle.ino)).refs
    drive.volume.freed_slices[ref.slice_id] = (ref.size, 0.0)
    assert (await gc.collect(fs, grace=NOW)).slices == 0
    assert drive.volume.freed_slices == {}
    assert await content(fs) == BIG
