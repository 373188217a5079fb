"""Dirty data: coalescing, uploads during writes, limits, lost writes, fencing."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.doubles.meta_store import MemoryMeta
from tests.harness.simulation.virtual_loop import VirtualLoop
from tests.harness.wait import until
from tests.unit.wrkfs.drive import ME, Drive, content, create
from wrkfs.dirty import FLUSH_WAIT, PAGE, REST_WAIT
from wrkfs.errors import Fenced, FileTooBig, Stale, StorageError, Unavailable
from wrkfs.fs import DEFAULT_LIMITS, Filesystem
from wrkfs.layout import BLOCK_SIZE, INLINE_MAX, MAX_FILE_SIZE
from wrkfs.types import ROOT_INO, SetAttr
from wrkfs.write_path import SLICE_RANGE
from wrkfs.writer import COMMIT_DELAY, MAX_RUNS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from wrkfs.types import Attr, Commit, FileMap, Ino


class Interrupted(MemoryMeta):
    """A memory store that does not answer `open` during an outage."""

    outage = False

    async def open(self, ino: Ino, *, truncate: bool = False) -> FileMap:
        if self.outage:
            raise Unavailable
        return await super().open(ino, truncate=truncate)


async def refs(fs: Filesystem) -> list[tuple[int, int, bool]]:
    """Return (pos, length, inline) of the slices of `file`."""
    found = await fs.file_map((await fs.lookup(ROOT_INO, b"file")).ino)
    return [(ref.pos, ref.length, ref.inline is not None) for ref in found.refs]


async def test_a_small_file_is_one_commit_and_no_object(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs)
    await handle.write(0, b"hello")
    await handle.close()
    assert await refs(fs) == [(0, 5, True)]
    assert not drive.blocks.objects


async def test_contiguous_and_overlapping_writes_become_one_slice(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs)
    for start in range(0, 3 * INLINE_MAX, 1000):
        await handle.write(start, b"x" * 1000)
    await handle.write(10, b"y" * 5)
    await handle.close()
    assert len(await refs(fs)) == 1
    data = await content(fs)
    assert data[8:17] == b"xxyyyyyxx"


async def test_a_newer_scattered_write_is_not_hidden_by_an_older_run(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs)
    await handle.write(0, b"a" * 10)
    await handle.write(20, b"b" * 10)
    await handle.write(10, b"c" * 15)
    await handle.write(5, b"d" * 20)
    await handle.close()
    assert await content(fs) == b"a" * 5 + b"d" * 20 + b"b" * 5


async def test_full_blocks_are_stored_while_writing(drive: Drive) -> None:
    fs = await drive.mount(drive.blocks)
    handle = await create(fs)
    await handle.write(0, bytes(BLOCK_SIZE) + b"tail")
    # A slow machine may have made more than one commit, and then committed the tail too.
    await until(lambda: drive.blocks.puts)
    await handle.write(BLOCK_SIZE + 4, b"more")
    await handle.close()
    assert (await content(fs))[BLOCK_SIZE:] == b"tailmore"


async def test_a_write_before_a_sealed_block_is_a_slice_of_its_own(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs)
    await handle.write(0, bytes(BLOCK_SIZE + 10))
    await handle.write(100, b"patch")
    assert await handle.read(98, 9) == b"\0\0patch\0\0"
    await handle.close()
    assert (await content(fs))[98:107] == b"\0\0patch\0\0"


async def test_written_bytes_become_visible_without_close(drive: Drive) -> None:
    here, there = await drive.mount(), await drive.mount()
    handle = await create(here)
    await handle.write(0, b"line\n")
    attr = await there.lookup(ROOT_INO, b"file")
    async with asyncio.timeout(10):
        while (await there.getattr(attr.ino)).size != 5:  # noqa: ASYNC110 the store has no event
            await asyncio.sleep(0.005)
    assert await content(there) == b"line\n"


async def test_size_and_mtime_count_dirty_bytes(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs)
    before = await fs.getattr(handle.ino)
    await handle.write(100, b"x")
    for attr in (
        await fs.getattr(handle.ino),
        await fs.lookup(ROOT_INO, b"file"),
        (await fs.readdir(ROOT_INO, 0, 10))[0].attr,
    ):
        assert attr.size == 101
        assert attr.mtime_ns > before.mtime_ns


async def test_mtime_does_not_move_after_the_last_write(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs)
    await handle.write(0, b"x")
    dirty = await fs.getattr(handle.ino)
    await handle.close()
    assert (await fs.getattr(handle.ino)).mtime_ns == dirty.mtime_ns


async def test_a_chosen_mtime_survives_the_commit_of_earlier_writes(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs)
    await handle.write(0, b"x")
    await fs.setattr(handle.ino, SetAttr(mtime_ns=10**9))
    await handle.close()
    assert (await fs.getattr(handle.ino)).mtime_ns == 10**9


async def test_truncation_is_ordered_with_dirty_bytes(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs)
    await handle.write(0, b"0123456789")
    assert (await fs.setattr(handle.ino, SetAttr(size=4))).size == 4
    await handle.write(6, b"ab")
    await handle.close()
    assert await content(fs) == b"0123\0\0ab"


async def test_appends_of_two_sessions_neither_overlap_nor_tear(drive: Drive) -> None:
    here, there = await drive.mount(), await drive.mount()
    (await create(here)).attr  # noqa: B018 - made so that it exists
    ino = (await here.lookup(ROOT_INO, b"file")).ino
    handles = [await fs.open(ino, os.O_WRONLY | os.O_APPEND) for fs in (here, there)]
    for number in range(50):
        for who, handle in enumerate(handles):
            await handle.write(0, b"%d:%03d\n" % (who, number))
        if number % 7 == 0:
            await asyncio.gather(*(handle.fsync() for handle in handles))
    for handle in handles:
        await handle.close()
    lines = (await content(here)).splitlines()
    for who in range(2):
        mine = [line for line in lines if line.startswith(b"%d:" % who)]
        assert mine == [b"%d:%03d" % (who, number) for number in range(50)]


async def test_own_appends_are_read_and_counted_at_once(drive: Drive) -> None:
    fs = await drive.mount()
    placed = await create(fs)
    await placed.write(0, b"head")
    appended = await fs.open(placed.ino, os.O_RDWR | os.O_APPEND)
    await appended.write(0, b"tail")
    assert (await fs.getattr(placed.ino)).size == 8
    assert await placed.read(0, 100) == b"headtail"


async def test_a_lost_write_is_told_once_to_every_handle_open_then(drive: Drive) -> None:
    fs = await drive.mount(drive.blocks)
    first = await create(fs)
    second = await fs.open(first.ino, os.O_RDONLY)

    async def refuse(key: str) -> None:
        raise StorageError(key)

    drive.blocks.before_put = refuse
    await first.write(0, bytes(INLINE_MAX + 1))
    with pytest.raises(StorageError):
        await first.fsync()
    drive.blocks.before_put = None
    later = await fs.open(first.ino, os.O_RDWR)
    await first.fsync()
    await first.write(0, b"new")
    await first.close()
    with pytest.raises(StorageError):
        await second.close()
    await later.close()
    assert await content(fs) == b"new"


async def test_a_loss_in_the_background_is_told_by_the_next_flush(drive: Drive) -> None:
    fs = await drive.mount(drive.blocks)
    handle = await create(fs)
    refused = asyncio.Event()

    async def refuse(_key: str) -> None:
        refused.set()
        raise Unavailable

    drive.blocks.before_put = refuse
    await handle.write(0, bytes(INLINE_MAX + 1))
    async with asyncio.timeout(10):
        await refused.wait()
    with pytest.raises(Unavailable):
        await handle.flush()
    await handle.close()


def committed(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the bytes of each further commit of the first session."""
    meta, through, sizes = drive.metas[0], drive.metas[0].commit, list[int]()

    async def counted(commit: Commit) -> Attr:
        sizes.append(sum(extent.length for extent in commit.extents))
        return await through(commit)

    monkeypatch.setattr(meta, "commit", counted)
    return sizes


def test_nothing_comes_between_the_pieces_of_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """No timer, sync, close of another descriptor, flush or truncation splits a write."""

    async def play() -> list[int]:
        drive = Drive()
        fs = await drive.mount()
        handle = await create(fs)
        sizes = committed(drive, monkeypatch)

        async def nothing() -> None:
            pass

        async def end_another() -> None:
            await (await fs.open(handle.ino, os.O_RDWR)).close()

        async def truncate() -> None:
            await fs.setattr(handle.ino, SetAttr(size=0))

        looks: list[Callable[[], Coroutine[None, None, None]]]
        looks = [nothing, fs.sync, end_another, handle.flush, truncate]
        for look in looks:
            await handle.write(10, b"x" * 10)
            await asyncio.sleep(COMMIT_DELAY - FLUSH_WAIT / 2)
            await handle.write(100, b"y" * (PAGE - 100))
            looking = asyncio.ensure_future(look())
            await asyncio.sleep(FLUSH_WAIT * 0.9)
            await handle.write(PAGE, b"y" * 50)
            await looking
            await asyncio.sleep(1)
        await handle.close()
        await drive.close()
        return sizes

    assert VirtualLoop(0).run(play()) == [10 + PAGE - 50] * 5


def test_only_the_kernel_syncs_what_may_be_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(flags: int) -> list[int]:
        drive = Drive()
        fs = await drive.mount()
        handle = await create(fs, flags=os.O_RDWR | flags)
        sizes = committed(drive, monkeypatch)
        await handle.write(100, b"y" * (PAGE - 100))
        await handle.write(PAGE, b"y" * 50)
        await handle.close()
        await drive.close()
        return sizes

    assert VirtualLoop(0).run(play(os.O_SYNC)) == [PAGE - 50]
    for flags in (os.O_APPEND, os.O_DIRECT):
        assert VirtualLoop(0).run(play(os.O_DSYNC | flags)) == [PAGE - 100, 50]


def test_a_rest_is_taken_in_though_too_much_is_dirty() -> None:
    async def play() -> None:
        drive = Drive()
        fs = await drive.mount(limits=replace(DEFAULT_LIMITS, dirty=PAGE))
        handles = [await create(fs, name) for name in (b"a", b"b")]
        await handles[0].write(100, b"x" * (PAGE - 100))
        other = asyncio.create_task(handles[1].write(0, b"z" * PAGE))
        await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        await handles[0].write(PAGE, b"x" * 200)
        assert asyncio.get_running_loop().time() == began
        assert not other.done()
        await other
        for handle in handles:
            await handle.close()
        await drive.close()

    VirtualLoop(0).run(play())


def test_a_commit_waits_for_a_rest_that_waits_for_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slice ids may run out between two requests of a write."""

    async def play() -> list[int]:
        drive = Drive()
        fs = await drive.mount()
        meta, through = drive.metas[0], drive.metas[0].reserve_slices

        async def slowly(many: int) -> int:
            await asyncio.sleep(10)
            return await through(many)

        handle = await create(fs)
        sizes = committed(drive, monkeypatch)
        for number in range(SLICE_RANGE - 1):
            await handle.write((2 + 2 * number) * PAGE, b"x")
        await asyncio.sleep(1)
        monkeypatch.setattr(meta, "reserve_slices", slowly)
        await handle.write(100, b"y" * (PAGE - 100))
        await handle.write(PAGE, b"y" * 50)
        await handle.close()
        await drive.close()
        return sizes

    assert VirtualLoop(0).run(play()) == [SLICE_RANGE - 1, PAGE - 50]


def test_a_rest_does_not_meet_the_bound_on_scattered_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play() -> list[int]:
        drive = Drive()
        fs = await drive.mount()
        handle = await create(fs)
        sizes = committed(drive, monkeypatch)
        async with handle.file.writer.between_commits():
            for number in range(4 * MAX_RUNS - 1):
                await handle.write((2 + 2 * number) * PAGE, b"x")
            await handle.write(100, b"y" * (PAGE - 100))
            async with asyncio.timeout(REST_WAIT / 2):
                await handle.write(PAGE, b"y" * 50)
        await handle.close()
        await drive.close()
        return sizes

    assert VirtualLoop(0).run(play()) == [4 * MAX_RUNS - 1 + PAGE - 50]


def test_a_write_that_ends_with_a_page_is_visible_in_time_and_safe_at_once() -> None:
    async def play() -> None:
        drive = Drive()
        here, there = await drive.mount(), await drive.mount()
        loop = asyncio.get_running_loop()
        handle = await create(here)
        await handle.write(100, b"x" * (PAGE - 100))
        await asyncio.sleep(0.2)
        assert (await there.getattr(handle.ino)).size == PAGE
        await handle.write(100, b"x" * (PAGE - 100))
        began = loop.time()
        await asyncio.sleep(COMMIT_DELAY + 0.01)
        await handle.fsync()
        assert loop.time() == pytest.approx(began + COMMIT_DELAY + 0.01)
        await handle.close()
        await drive.close()

    VirtualLoop(0).run(play())


async def test_limits_of_offsets(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs)
    with pytest.raises(FileTooBig):
        await handle.write(MAX_FILE_SIZE, b"x")
    assert await handle.write(0, b"") == 0


async def test_a_cancelled_caller_does_not_tear_the_commit(drive: Drive) -> None:
    fs = await drive.mount(drive.blocks)
    handle = await create(fs)
    entered, go = asyncio.Event(), asyncio.Event()

    async def wait(_key: str) -> None:
        entered.set()
        await go.wait()

    drive.blocks.before_put = wait
    await handle.write(0, b"x" * (INLINE_MAX + 1))
    flush = asyncio.create_task(handle.flush())
    async with asyncio.timeout(10):
        await entered.wait()
    flush.cancel()
    await asyncio.gather(flush, return_exceptions=True)
    go.set()
    await handle.close()
    assert len(await content(fs)) == INLINE_MAX + 1


async def test_dirty_bytes_of_a_fenced_session_are_refused(drive: Drive) -> None:
    fs = await drive.mount(drive.blocks)
    handle = await create(fs)
    await handle.write(0, b"committed")
    await handle.fsync()
    reader = await fs.open(handle.ino, os.O_RDONLY)
    clean = await create(fs, b"clean")
    await handle.write(0, b"x" * (BLOCK_SIZE + 1))
    drive.volume.end(drive.metas[0].session)
    with pytest.raises(Fenced):
        await handle.fsync()
    assert drive.metas[0].epoch == 2
    later = await fs.open(handle.ino, os.O_RDWR)
    await later.write(0, b"C")
    await later.close()
    with pytest.raises(Fenced):
        await reader.fsync()
    await reader.close()
    await handle.write(9, b"!")
    await handle.close()
    await clean.write(0, b"y")
    await clean.close()
    assert await content(fs) == b"Committed!"
    assert await content(fs, b"clean") == b"y"


async def test_a_call_that_meets_the_fence_refuses_the_dirty_bytes_of_all_files(
    drive: Drive,
) -> None:
    fs = await drive.mount()
    handles = [await create(fs, name) for name in (b"a", b"b")]
    for handle in handles:
        await handle.write(0, b"x")
    drive.volume.end(drive.metas[0].session)
    await fs.mkdir(ROOT_INO, b"d", 0o755, ME)
    assert drive.metas[0].epoch == 2
    for handle in handles:
        assert await handle.read(0, 10) == b""
        with pytest.raises(Fenced):
            await handle.close()
        assert (await fs.getattr(handle.ino)).size == 0


async def test_bytes_in_an_upload_when_the_session_is_fenced_are_refused(drive: Drive) -> None:
    fs = await drive.mount(drive.blocks)
    handle = await create(fs)
    entered, go = asyncio.Event(), asyncio.Event()

    async def wait(_key: str) -> None:
        entered.set()
        await go.wait()

    drive.blocks.before_put = wait
    await handle.write(0, b"x" * (INLINE_MAX + 1))
    closing = asyncio.create_task(handle.close())
    await entered.wait()
    drive.volume.end(drive.metas[0].session)
    await fs.mkdir(ROOT_INO, b"d", 0o755, ME)
    go.set()
    with pytest.raises(Fenced):
        await closing
    assert await content(fs) == b""


async def test_a_writer_alone_comes_back_after_the_fence(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs)
    drive.volume.end(drive.metas[0].session)
    await handle.write(0, b"x")
    await handle.fsync()
    await handle.close()
    assert await content(fs) == b"x"


async def test_an_outage_while_rejoining_is_no_loss_of_the_file(drive: Drive) -> None:
    """Only a removed file fails for good. After an outage the session tries again."""
    meta = Interrupted(drive.volume)
    await meta.start()
    fs = Filesystem(meta, drive.blocks)
    handles = [await create(fs, name) for name in (b"a", b"b")]
    meta.outage = True
    drive.volume.end(meta.session)
    with pytest.raises(Unavailable):
        await fs.mkdir(ROOT_INO, b"d", 0o755, ME)
    with pytest.raises(Unavailable):
        await handles[1].write(0, b"x")
    meta.outage = False
    for handle in handles:
        await handle.write(0, b"x")
        await handle.fsync()
        await fs.unlink(ROOT_INO, b"a" if handle is handles[0] else b"b")
        assert await handle.read(0, 10) == b"x", "sustained in the new epoch"
        await handle.close()
    assert meta.epoch == 2
    await fs.close()


async def test_a_file_that_vanished_with_the_session_is_stale(drive: Drive) -> None:
    fs, other = await drive.mount(), await drive.mount()
    handle = await create(fs)
    await handle.write(0, b"x")
    await other.unlink(ROOT_INO, b"file")
    drive.volume.end(drive.metas[0].session)
    with pytest.raises(Stale):
        await handle.fsync()
    with pytest.raises(Stale):
        await handle.write(0, b"x")


async def test_many_scattered_writes(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs)
    model = bytearray(3000 * 10)
    for number in range(2999, -1, -1):
        await handle.write(number * 10, b"%05d" % number)
        model[number * 10 : number * 10 + 5] = b"%05d" % number
    await handle.close()
    assert await content(fs) == bytes(model[:-5])


async def test_fs_sync_commits_all_files(drive: Drive) -> None:
    fs, other = await drive.mount(), await drive.mount()
    for name in (b"a", b"b"):
        handle = await create(fs, name)
        await handle.write(0, name)
    await fs.sync()
    assert [await content(other, name) for name in (b"a", b"b")] == [b"a", b"b"]


async def test_an_exclusive_create_and_an_existing_file(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs)
    await handle.write(0, b"old")
    _, again = await fs.create(ROOT_INO, b"file", 0o600, os.O_WRONLY | os.O_TRUNC, ME)
    await again.write(0, b"n")
    await again.close()
    assert await content(fs) == b"n"
