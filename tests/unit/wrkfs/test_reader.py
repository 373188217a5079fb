"""Reads: checksums, holes, read-ahead, commits of other sessions."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.doubles.block_store import MemoryBlocks
from tests.harness.wait import until
from tests.unit.wrkfs.drive import Drive, content, create
from wrkfs.config import Limits
from wrkfs.data.diskcache import DiskCache
from wrkfs.errors import BadDescriptor, Corrupt, InvalidArgument, Missing, Unavailable
from wrkfs.layout import BLOCK_SIZE, CHECKSUM_UNIT, FileLayout, Segment
from wrkfs.reader import AHEAD_MAX, AHEAD_MIN, ReadAhead
from wrkfs.types import ROOT_INO, SetAttr, SliceId

if TYPE_CHECKING:
    from pathlib import Path

    from wrkfs.types import Ino

BIG = os.urandom(3 * BLOCK_SIZE + 12345)


async def stored(drive: Drive, data: bytes = BIG) -> None:
    """Write `file` with `data` in a session that does not read."""
    fs = await drive.mount(drive.blocks)
    handle = await create(fs)
    await handle.write(0, data)
    await handle.close()


async def test_any_range_reads_back(drive: Drive) -> None:
    await stored(drive)
    fs = await drive.mount()
    handle = await fs.open((await fs.lookup(ROOT_INO, b"file")).ino, os.O_RDONLY)
    for start, size in (
        (0, 1),
        (BLOCK_SIZE - 1, 2),
        (CHECKSUM_UNIT - 1, CHECKSUM_UNIT + 2),
        (2 * BLOCK_SIZE - 10, BLOCK_SIZE + 20),
        (len(BIG) - 5, 100),
        (len(BIG), 10),
        (len(BIG) + 10**6, 10),
        (0, len(BIG)),
    ):
        assert await handle.read(start, size) == BIG[start : start + size]


async def test_a_small_read_fetches_only_the_units_it_touches(drive: Drive) -> None:
    await stored(drive)
    asked: list[int] = []

    class Counting(MemoryBlocks):
        async def get(self, key: str, start: int, length: int) -> memoryview:
            asked.append(length)
            return await super().get(key, start, length)

    blocks = Counting()
    blocks.objects = drive.blocks.objects
    fs = await drive.mount(blocks)
    handle = await fs.open((await fs.lookup(ROOT_INO, b"file")).ino, os.O_RDONLY)
    assert await handle.read(BLOCK_SIZE + 5, 10) == BIG[BLOCK_SIZE + 5 : BLOCK_SIZE + 15]
    assert asked == [CHECKSUM_UNIT]
    await handle.read(BLOCK_SIZE + 50, 10)
    assert asked == [CHECKSUM_UNIT], "the second read is served from the cache"


async def test_a_changed_object_is_an_error_never_wrong_bytes(drive: Drive) -> None:
    await stored(drive)
    key = sorted(drive.blocks.objects)[1]
    spoilt = bytearray(drive.blocks.objects[key])
    spoilt[CHECKSUM_UNIT + 3] ^= 1
    drive.blocks.objects[key] = bytes(spoilt)
    fs = await drive.mount()
    handle = await fs.open((await fs.lookup(ROOT_INO, b"file")).ino, os.O_RDONLY)
    assert await handle.read(BLOCK_SIZE, 100) == BIG[BLOCK_SIZE : BLOCK_SIZE + 100]
    with pytest.raises(Corrupt):
        await handle.read(BLOCK_SIZE + CHECKSUM_UNIT, 1)
    with pytest.raises(Corrupt):
        await handle.read(0, len(BIG))


@pytest.mark.parametrize("how", ["missing", "short"])
async def test_a_lost_object_is_an_error(drive: Drive, how: str) -> None:
    await stored(drive)
    key = sorted(drive.blocks.objects)[0]
    if how == "missing":
        del drive.blocks.objects[key]
    else:
        drive.blocks.objects[key] = drive.blocks.objects[key][:100]
    with pytest.raises(Corrupt):
        await content(await drive.mount())


def moved(drive: Drive, ino: Ino) -> None:
    """Do what compaction and collection do: same bytes and version, other objects."""
    node = drive.volume.nodes[ino]
    new = SliceId(max(ref.slice_id for ref in node.refs) + 1_000_000)
    for ref in node.refs:
        for key in [key for key in drive.blocks.objects if f"/{ref.slice_id}/" in key]:
            fresh = key.replace(f"/{ref.slice_id}/", f"/{new}/")
            drive.blocks.objects[fresh] = drive.blocks.objects.pop(key)
    node.refs = [replace(ref, slice_id=new) for ref in node.refs]


@pytest.mark.parametrize("snapshot", [True, False])
async def test_a_reader_follows_a_compaction(drive: Drive, snapshot: bool) -> None:
    await stored(drive)
    fs = await drive.mount()
    ino = (await fs.lookup(ROOT_INO, b"file")).ino
    handle = await (fs.open_snapshot(ino) if snapshot else fs.open(ino, os.O_RDONLY))
    assert await handle.read(0, 10) == BIG[:10]
    for start in (BLOCK_SIZE, 0):
        moved(drive, ino)
        assert await handle.read(start, len(BIG)) == BIG[start:]
    await handle.close()


async def test_a_snapshot_whose_bytes_are_gone_is_an_error(drive: Drive) -> None:
    await stored(drive)
    fs, other = await drive.mount(), await drive.mount()
    ino = (await fs.lookup(ROOT_INO, b"file")).ino
    handle = await fs.open_snapshot(ino)
    await other.setattr(ino, SetAttr(size=BLOCK_SIZE))
    moved(drive, ino)
    with pytest.raises(Missing):
        await handle.read(0, 10)


async def test_a_failed_prefetch_harms_nobody(drive: Drive) -> None:
    await stored(drive)
    blocks = drive.blocks.attach()
    failures = 0

    async def refuse(key: str) -> None:
        nonlocal failures
        if not key.endswith("/0"):
            failures += 1
            raise Unavailable(key)

    blocks.before_get = refuse
    fs = await drive.mount(blocks)
    handle = await fs.open((await fs.lookup(ROOT_INO, b"file")).ino, os.O_RDONLY)
    for start in range(0, CHECKSUM_UNIT * 4, CHECKSUM_UNIT):
        assert await handle.read(start, CHECKSUM_UNIT) == BIG[start : start + CHECKSUM_UNIT]
    await until(lambda: failures)
    blocks.before_get = None
    assert await handle.read(BLOCK_SIZE, 10) == BIG[BLOCK_SIZE : BLOCK_SIZE + 10]


async def test_sequential_reading_fetches_whole_blocks_once(drive: Drive) -> None:
    await stored(drive)
    blocks = drive.blocks.attach()
    fs = await drive.mount(blocks)
    handle = await fs.open((await fs.lookup(ROOT_INO, b"file")).ino, os.O_RDONLY)
    data = b""
    while piece := await handle.read(len(data), CHECKSUM_UNIT):
        data += piece
    assert data == BIG
    assert blocks.gets <= 5, "four blocks, and the first unit before reading was sequential"


async def test_open_handles_see_what_others_commit(drive: Drive) -> None:
    here, there = await drive.mount(), await drive.mount()
    mine = await create(here)
    await mine.write(0, b"one")
    await mine.flush()
    theirs = await there.open(mine.ino, os.O_RDWR)
    assert await theirs.read(0, 10) == b"one"
    await mine.write(0, b"two")
    await mine.flush()
    assert await theirs.read(0, 10) == b"two"
    await there.setattr(mine.ino, SetAttr(size=1))
    assert await mine.read(0, 10) == b"t"
    await theirs.close()


async def test_an_unlinked_file_stays_readable_on_both_mounts(drive: Drive) -> None:
    await stored(drive)
    here, there = await drive.mount(), await drive.mount()
    ino = (await here.lookup(ROOT_INO, b"file")).ino
    handles = [await fs.open(ino, os.O_RDONLY) for fs in (here, there)]
    await here.unlink(ROOT_INO, b"file")
    for handle in handles:
        assert await handle.read(0, len(BIG)) == BIG
        await handle.close()


async def test_holes_are_zeros(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs)
    await handle.write(10, b"x")
    assert await handle.read(0, 20) == bytes(10) + b"x"
    await handle.flush()
    await fs.setattr(handle.ino, SetAttr(size=30))
    assert await handle.read(0, 50) == bytes(10) + b"x" + bytes(19)
    assert await handle.read(25, 2) == bytes(2)


async def test_handles_check_what_they_are_asked(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs, flags=os.O_WRONLY)
    with pytest.raises(BadDescriptor):
        await handle.read(0, 1)
    reader = await fs.open(handle.ino, os.O_RDONLY)
    with pytest.raises(BadDescriptor):
        await reader.write(0, b"x")
    with pytest.raises(InvalidArgument):
        await reader.read(-1, 1)
    await reader.close()
    await reader.close()
    with pytest.raises(BadDescriptor):
        await reader.read(0, 1)


def test_read_ahead_grows_while_sequential_and_ends_with_a_jump() -> None:
    plan = ReadAhead()
    assert plan.plan(0, 100) == 0
    assert plan.plan(100, 100) == AHEAD_MIN
    assert plan.plan(200, 100) == 2 * AHEAD_MIN
    windows = [plan.plan(at, 100) for at in range(300, 900, 100)]
    assert windows[-2:] == [AHEAD_MAX, AHEAD_MAX]
    assert plan.plan(10**9, 100) == 0
    assert plan.plan(10**9 + 100, 100) == AHEAD_MIN


async def opened(directory: Path) -> DiskCache:
    """Return a disk cache that has indexed its files."""
    disk = DiskCache(directory, 1 << 30, reserve=0.0)
    await disk.start()
    await until(lambda: disk.usage.state == "ready")
    return disk


async def holds(disk: DiskCache, size: int) -> None:
    """Wait until the cache has written that many bytes."""
    await until(lambda: disk.usage.size >= size)


async def test_a_damaged_disk_cache_is_a_detour_never_wrong_bytes(
    drive: Drive, tmp_path: Path
) -> None:
    await stored(drive)
    for round_ in range(3):
        blocks = drive.blocks.attach()
        disk = await opened(tmp_path / "cache")
        fs = await drive.mount(blocks, disk)
        assert await content(fs) == BIG
        await holds(disk, len(BIG))
        usage = fs.cache_usage
        assert usage.disk is not None
        assert (blocks.gets, usage.disk.hits) == [(4, 0), (0, 4), (1, 4)][round_]
        await fs.close()
        if round_ == 1:
            file = next((tmp_path / "cache").glob("??/*-1-0-*"))
            spoilt = bytearray(file.read_bytes())
            spoilt[12345] ^= 1
            file.write_bytes(spoilt)


async def test_many_readers_stay_within_memory_and_fetch_nothing_twice(drive: Drive) -> None:
    readers, size = 24, BLOCK_SIZE + 2 * CHECKSUM_UNIT
    writer = await drive.mount(drive.blocks)
    for number in range(readers):
        handle = await create(writer, b"%d" % number)
        await handle.write(0, bytes([number]) * size)
        await handle.close()
    got = 0

    class Counting(MemoryBlocks):
        async def get(self, key: str, start: int, length: int) -> memoryview:
            nonlocal got
            got += length
            return await super().get(key, start, length)

    blocks = Counting()
    blocks.objects = drive.blocks.objects
    limit = 8 * BLOCK_SIZE
    fs = await drive.mount(blocks, limits=Limits(blocks=limit))
    handles = [
        await fs.open((await fs.lookup(ROOT_INO, b"%d" % number)).ino, os.O_RDONLY)
        for number in range(readers)
    ]
    for start in range(0, size, CHECKSUM_UNIT):
        pieces = await asyncio.gather(*(one.read(start, CHECKSUM_UNIT) for one in handles))
        assert pieces == [bytes([n]) * CHECKSUM_UNIT for n in range(readers)]
        assert fs.cache_usage.memory <= limit
    assert got <= readers * size + limit, "read-ahead never pushes out what it has fetched"


async def test_a_file_in_many_pieces_is_read_without_looking_at_all_of_them(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs)
    count, size = 1500, 4096
    for number in reversed(range(count)):
        await handle.write(number * size, bytes([number % 251]) * size)
    await handle.flush()
    looked = 0

    class Layout(FileLayout):
        def between(self, start: int, end: int) -> list[Segment]:
            nonlocal looked
            found = super().between(start, end)
            looked += len(found)
            return found

    reader = handle.file
    await handle.read(0, size)
    assert reader.layout is not None
    found = Layout(await fs.file_map(handle.ino))
    assert len(found.between(0, count * size)) == count
    reader.layout, looked = found, 0
    for number in range(1, 100):
        assert await handle.read(number * size, size) == bytes([number % 251]) * size
    assert looked < 100 * (BLOCK_SIZE // size + 2)


async def test_readers_that_went_away_do_not_end_read_ahead(drive: Drive) -> None:
    await stored(drive)
    writer = await drive.mount(drive.blocks)
    handle = await create(writer, b"long")
    await handle.write(0, bytes(24 * BLOCK_SIZE))
    await handle.close()
    blocks = drive.blocks.attach()
    fs = await drive.mount(blocks, limits=Limits(blocks=4 * BLOCK_SIZE))
    gone = await fs.open((await fs.lookup(ROOT_INO, b"file")).ino, os.O_RDONLY)
    for start in range(3):
        await gone.read(start * CHECKSUM_UNIT, CHECKSUM_UNIT)
    await until(lambda: blocks.gets > 2)
    long = await fs.open((await fs.lookup(ROOT_INO, b"long")).ino, os.O_RDONLY)
    counts = []
    for number in range(24 * BLOCK_SIZE // CHECKSUM_UNIT):
        if number % (BLOCK_SIZE // CHECKSUM_UNIT) == 0:
            counts.append(blocks.gets)
        await long.read(number * CHECKSUM_UNIT, CHECKSUM_UNIT)
    assert counts[-1] - counts[-5] <= 5, "whole blocks again"
