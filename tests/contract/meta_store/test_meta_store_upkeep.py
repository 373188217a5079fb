"""Contract of `MetaStore`, garbage and compaction: every test runs on memory and on PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.harness.volumes.extents import Objects
from tests.harness.volumes.metastore import let_go
from wrkfs import errors
from wrkfs.layout import CHUNK_SIZE
from wrkfs.types import (
    ROOT_INO,
    Caller,
    Commit,
    Extent,
    FileMap,
    Ino,
    SetAttr,
    SliceId,
    SliceRef,
    Stretch,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.harness.volumes.metastore import MetaVolume
    from wrkfs.meta.interface.store import MetaStore

ME = Caller(1000, 1001)
NOW = timedelta(0)
HEARTBEATS = 20.0
"""Seconds in which every live session tells what it reads."""


@pytest.fixture
def objects() -> Objects:
    """Where the slices of this test are."""
    return Objects()


async def opened(meta: MetaStore, name: bytes = b"f") -> Ino:
    return (await meta.create(ROOT_INO, name, 0o644, ME, exclusive=True))[0].attr.ino


async def put(meta: MetaStore, ino: Ino, *extents: Extent) -> FileMap:
    for extent in extents:
        await meta.commit(Commit(ino, (extent,), durable=False))
    return await meta.file_map(ino)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Heartbeats come every 2 seconds in PostgreSQL."""
    end = time.monotonic() + HEARTBEATS
    while not await condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


async def collectable(meta: MetaStore, count: int) -> list[tuple[SliceId, int]]:
    """Garbage, once there is so much."""
    await until(lambda: _has(meta, count))
    return await meta.upkeep.garbage(NOW, 100)


async def _has(meta: MetaStore, count: int) -> bool:
    return len(await meta.upkeep.garbage(NOW, 10_000)) >= count


async def test_slices_wait_until_they_are_forgotten(meta: MetaStore, objects: Objects) -> None:
    ino = await opened(meta)
    refs = (await put(meta, ino, objects.stored(0, b"a" * 10), objects.stored(10, b"b" * 5))).refs
    await meta.setattr(ino, SetAttr(size=0))
    found = await collectable(meta, 2)
    assert sorted(found) == sorted((ref.slice_id, ref.size) for ref in refs)
    assert await meta.upkeep.garbage(timedelta(hours=1), 100) == []
    assert len(await meta.upkeep.garbage(NOW, 1)) == 1
    await meta.upkeep.forget_slices([refs[0].slice_id])
    assert await meta.upkeep.garbage(NOW, 100) == [(refs[1].slice_id, 5)]
    await meta.upkeep.forget_slices([ref.slice_id for ref in refs])
    assert await meta.upkeep.garbage(NOW, 100) == []


async def test_a_snapshot_of_any_session_holds_back_collection(
    meta: MetaStore, other: MetaStore, meta_volume: MetaVolume, objects: Objects
) -> None:
    taken = [time.monotonic()]
    other.upkeep.watch_snapshots(lambda: taken[0] if taken else None)
    ino = await opened(meta)
    await put(meta, ino, objects.stored(0, b"a" * 10))
    await meta.setattr(ino, SetAttr(size=0))
    third = await meta_volume.session()
    await put(third, await opened(third, b"g"), objects.stored(0, b"b"))
    await third.unlink(ROOT_INO, b"g")
    await third.close()
    seen = [await meta.upkeep.garbage(NOW, 100) for _ in range(30)]
    assert seen == [[]] * 30
    taken.clear()
    assert len(await collectable(meta, 2)) == 2


async def test_ids_that_were_given_up_are_garbage_unless_they_are_in_use(
    meta: MetaStore, objects: Objects
) -> None:
    ino = await opened(meta)
    used = (await put(meta, ino, objects.stored(0, b"a"), objects.inline(1, b"b"))).refs
    lost = await meta.reserve_slices(2)
    await meta.give_up({lost: 100, **{ref.slice_id: ref.size for ref in used}})
    await meta.give_up({lost: 100})
    assert await collectable(meta, 1) == [(lost, 100)]


async def test_garbage_is_never_committed_again(meta: MetaStore, objects: Objects) -> None:
    ino = await opened(meta)
    given_up, replaced = objects.stored(0, b"a" * 10), objects.stored(0, b"b" * 10)
    before = await put(meta, ino, replaced)
    after = await put(meta, ino, objects.stored(0, b"c" * 10))
    await meta.give_up({given_up.slice_id: 10})
    for garbage in (given_up, replaced):
        both = (objects.inline(20, b"d"), garbage)
        with pytest.raises(errors.InvalidArgument):
            await meta.commit(Commit(ino, both, durable=False))
        with pytest.raises(errors.InvalidArgument):
            await meta.compact(stretch(ino, garbage, after.refs))
    assert before.refs != after.refs
    assert await meta.file_map(ino) == after
    assert len(await collectable(meta, 2)) == 2


async def test_what_an_ended_session_left_uncommitted_is_found(
    meta: MetaStore, other: MetaStore, meta_volume: MetaVolume, objects: Objects
) -> None:
    live = await meta.reserve_slices(3)
    ino = await opened(meta)
    first = await other.reserve_slices(4)
    data = objects.stored(0, b"hello")
    committed = Extent(0, first, 5, data.checksums, None)
    inline = Extent(5, SliceId(first + 1), 1, b"", b"!")
    await put(other, ino, committed, inline)
    await other.give_up({SliceId(first + 2): 7})
    assert await meta.upkeep.adopt_orphans(NOW, 10, 4096) == (0, 0)
    await meta_volume.fence(other)
    assert await meta.upkeep.adopt_orphans(timedelta(hours=1), 10, 4096) == (0, 0)
    ranges, count = await meta.upkeep.adopt_orphans(NOW, 10, 4096)
    assert ranges == 1
    assert count >= 1
    assert await meta.upkeep.adopt_orphans(NOW, 10, 4096) == (0, 0)
    await until(lambda: _has(meta, count))
    found = dict(await meta.upkeep.garbage(NOW, 10_000))
    assert found[SliceId(first + 3)] == 4096
    assert found[SliceId(first + 2)] == 7
    assert not {first, first + 1, live, live + 1, live + 2} & set(found)


async def test_many_ids_are_found_in_steps(
    meta: MetaStore, other: MetaStore, meta_volume: MetaVolume
) -> None:
    count = 70_000
    first = await other.reserve_slices(count)
    await meta_volume.fence(other)
    found = []
    while (step := await meta.upkeep.adopt_orphans(NOW, 10, 4096))[0]:
        found.append(step[1])
    assert len(found) == 2
    assert max(found) <= 65_536
    assert sum(found) >= count
    await until(lambda: _has(meta, 10_000))
    assert {first, first + count - 1} <= dict(await meta.upkeep.garbage(NOW, 2 * count)).keys()


async def test_a_session_that_told_everything_leaves_no_ranges(
    meta: MetaStore, other: MetaStore
) -> None:
    await other.reserve_slices(3)
    await other.drop_ranges()
    await other.close()
    assert await meta.upkeep.adopt_orphans(NOW, 10, 4096) == (0, 0)


async def test_one_session_has_the_upkeep_at_a_time(
    meta: MetaStore, other: MetaStore, meta_volume: MetaVolume
) -> None:
    period = timedelta(seconds=60)
    assert await meta.upkeep.claim_upkeep(period)
    assert not await other.upkeep.claim_upkeep(period)
    assert await meta.upkeep.claim_upkeep(NOW)
    await until(lambda: other.upkeep.claim_upkeep(period))
    assert not await meta.upkeep.claim_upkeep(period)
    await meta_volume.fence(other)
    assert not await other.upkeep.claim_upkeep(period)
    assert await meta.upkeep.claim_upkeep(period)


# -- compaction --


def stretch(ino: Ino, copy: Extent, refs: tuple[SliceRef, ...], *hidden: SliceRef) -> Stretch:
    return Stretch(ino, copy, refs, tuple(ref.slice_id for ref in hidden))


async def copied(meta: MetaStore, objects: Objects, pos: int, data: bytes) -> Extent:
    """A copy that stands in the object store under an id of this session."""
    return objects.stored(pos, data, await meta.reserve_slices(1))


async def test_a_copy_under_an_id_of_another_session_is_refused(
    meta: MetaStore, other: MetaStore, objects: Objects
) -> None:
    ino = await opened(meta)
    before = await put(meta, ino, objects.stored(0, b"aaaa"), objects.stored(2, b"bbbb"))
    foreign = await copied(other, objects, 0, b"aabbbb")
    for copy in (foreign, objects.stored(0, b"aabbbb")):
        with pytest.raises(errors.InvalidArgument):
            await meta.compact(stretch(ino, copy, before.refs))
    assert await meta.file_map(ino) == before
    assert await other.compact(stretch(ino, foreign, before.refs))


async def test_a_copy_takes_the_place_of_many_refs(
    meta: MetaStore, other: MetaStore, meta_volume: MetaVolume, objects: Objects
) -> None:
    ino = await opened(meta)
    before = await put(meta, ino, objects.stored(0, b"aaaa"), objects.inline(2, b"bb"))
    before = await put(meta, ino, objects.stored(4, b"cccc"))
    copy = await copied(other, objects, 0, b"aabbcccc")
    assert await other.compact(stretch(ino, copy, before.refs))
    after = await meta.file_map(ino)
    assert [ref.slice_id for ref in after.refs] == [copy.slice_id]
    assert after.attr == before.attr
    assert objects.read(after) == b"aabbcccc"
    gone = {ref.slice_id for ref in before.refs if ref.inline is None}
    assert await meta_volume.freed_slices() == gone


async def test_a_copy_can_be_inline(meta: MetaStore, objects: Objects) -> None:
    ino = await opened(meta)
    before = await put(meta, ino, objects.inline(4, b"bbbb"), objects.inline(0, b"aaaa"))
    assert len(before.refs) == 2
    assert await meta.compact(stretch(ino, objects.inline(0, b"aaaabbbb"), before.refs))
    assert objects.read(await meta.file_map(ino)) == b"aaaabbbb"


async def test_refs_that_reach_beyond_the_stretch_stay(
    meta: MetaStore, meta_volume: MetaVolume, objects: Objects
) -> None:
    ino = await opened(meta)
    pieces = [objects.inline(2, b"b"), objects.inline(4, b"c")]
    before = await put(meta, ino, objects.stored(0, b"aaaaaaaa"), *pieces)
    assert await meta.compact(stretch(ino, await copied(meta, objects, 2, b"bac"), before.refs))
    after = await meta.file_map(ino)
    assert objects.read(after) == b"aabacaaa"
    assert len(after.refs) == 2
    assert await meta_volume.freed_slices() == set()


async def test_hidden_refs_go_with_the_copy(
    meta: MetaStore, meta_volume: MetaVolume, objects: Objects
) -> None:
    ino = await opened(meta)
    pieces = [objects.stored(0, b"bb"), objects.stored(2, b"cc")]
    before = await put(meta, ino, objects.stored(0, b"aaaa"), *pieces)
    below, first, second = before.refs
    copy = objects.inline(2, b"cc")
    assert await meta.compact(stretch(ino, copy, (below, second), below))
    after = await meta.file_map(ino)
    assert [ref.slice_id for ref in after.refs] == [first.slice_id, copy.slice_id]
    assert objects.read(after) == b"bbcc"
    assert await meta_volume.freed_slices() == {below.slice_id, second.slice_id}


async def test_newer_refs_stay_on_top(meta: MetaStore, objects: Objects) -> None:
    ino = await opened(meta)
    before = await put(meta, ino, objects.stored(0, b"aaaa"), objects.stored(2, b"bbbb"))
    await put(meta, ino, objects.stored(1, b"nn"))
    assert await meta.compact(stretch(ino, await copied(meta, objects, 0, b"aabbbb"), before.refs))
    assert objects.read(await meta.file_map(ino)) == b"annbbb"


async def test_a_ref_that_a_newer_one_covers_is_no_change(
    meta: MetaStore, objects: Objects
) -> None:
    ino = await opened(meta)
    pieces = [objects.stored(0, b"aaaa"), objects.stored(4, b"bb"), objects.stored(6, b"cc")]
    before = await put(meta, ino, *pieces)
    await put(meta, ino, objects.stored(3, b"nnn"))
    assert len((await meta.file_map(ino)).refs) == 3
    assert await meta.compact(
        stretch(ino, await copied(meta, objects, 0, b"aaaabbcc"), before.refs)
    )
    assert objects.read(await meta.file_map(ino)) == b"aaannncc"


@pytest.mark.parametrize("size", [0, 3, 5])
async def test_a_truncation_in_between_refuses_the_copy(
    meta: MetaStore, other: MetaStore, objects: Objects, size: int
) -> None:
    ino = await opened(meta)
    before = await put(meta, ino, objects.stored(0, b"aaaa"), objects.stored(2, b"bbbb"))
    expected = objects.read(before)[:size] + bytes(6 - size)
    await other.setattr(ino, SetAttr(size=size))
    await other.setattr(ino, SetAttr(size=6))
    assert not await meta.compact(
        stretch(ino, await copied(meta, objects, 0, b"aabbbb"), before.refs)
    )
    assert objects.read(await meta.file_map(ino)) == expected


async def test_two_copies_of_the_same_refs_do_not_both_win(
    meta: MetaStore, other: MetaStore, objects: Objects
) -> None:
    ino = await opened(meta)
    before = await put(meta, ino, objects.stored(0, b"aaaa"), objects.stored(2, b"bbbb"))
    first = await copied(meta, objects, 0, b"aabbbb")
    second = await copied(other, objects, 0, b"aabbbb")
    assert await meta.compact(stretch(ino, first, before.refs))
    assert not await other.compact(stretch(ino, second, before.refs))
    assert (await meta.file_map(ino)).refs[0].slice_id == first.slice_id


async def test_chunks_are_compacted_apart(
    meta: MetaStore, meta_volume: MetaVolume, objects: Objects
) -> None:
    ino = await opened(meta)
    low, high = CHUNK_SIZE - 2, CHUNK_SIZE
    before = await put(meta, ino, objects.stored(low, b"aaaa"), objects.inline(high, b"b"))
    refs = tuple(ref for ref in before.refs if ref.pos >= high)
    assert await meta.compact(stretch(ino, objects.inline(high, b"ba"), refs))
    after = await meta.file_map(ino)
    assert sorted((ref.pos, ref.length) for ref in after.refs) == [(low, 2), (high, 2)]
    assert await meta_volume.freed_slices() == set()
    assert (await meta.upkeep.fragmented(Ino(0), 1, 10)) == [ino]


async def test_a_file_that_is_gone_is_not_compacted(meta: MetaStore, objects: Objects) -> None:
    ino = await opened(meta)
    before = await put(meta, ino, objects.stored(0, b"aaaa"), objects.stored(2, b"bbbb"))
    await meta.unlink(ROOT_INO, b"f")
    await let_go(meta, ino)
    assert not await meta.compact(
        stretch(ino, await copied(meta, objects, 0, b"aabbbb"), before.refs)
    )


async def test_files_with_many_refs_are_found_in_order(meta: MetaStore, objects: Objects) -> None:
    found = []
    for name in (b"a", b"b", b"c"):
        found.append(await opened(meta, name))
        for number in range(4 if name != b"b" else 3):
            await put(meta, found[-1], objects.stored(number * 10, b"x"))
    assert await meta.upkeep.fragmented(Ino(0), 4, 10) == [found[0], found[2]]
    assert await meta.upkeep.fragmented(Ino(0), 4, 1) == [found[0]]
    assert await meta.upkeep.fragmented(found[0], 4, 10) == [found[2]]
    assert await meta.upkeep.fragmented(found[2], 3, 10) == []


async def test_a_fenced_session_compacts_nothing_nor_does_its_next_epoch(
    meta: MetaStore, other: MetaStore, meta_volume: MetaVolume, objects: Objects
) -> None:
    ino = await opened(meta)
    before = await put(meta, ino, objects.stored(0, b"aaaa"), objects.stored(2, b"bbbb"))
    copy = await copied(other, objects, 0, b"aabbbb")
    await meta_volume.fence(other)
    with pytest.raises(errors.Fenced):
        await other.compact(stretch(ino, copy, before.refs))
    await other.rejoin()
    with pytest.raises(errors.InvalidArgument):
        await other.compact(stretch(ino, copy, before.refs))
    assert await meta.file_map(ino) == before
