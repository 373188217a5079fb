"""Compaction on stores in memory: stretches, their bytes, concurrent changes."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.harness.volumes.metastore import let_go
from tests.unit.wrkfs.drive import ME, content, create
from wrkfs.errors import Corrupt, Fenced, Unavailable
from wrkfs.layout import FRAGMENTED, KIB, MIB, FileLayout
from wrkfs.types import (
    ROOT_INO,
    Attr,
    Commit,
    Extent,
    FileMap,
    Ino,
    SetAttr,
    SliceId,
    SliceRef,
    Stretch,
)
from wrkfs.upkeep import background, compact, gc

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.unit.wrkfs.drive import Drive
    from wrkfs.fs import Filesystem

NOW = timedelta(0)
PAGE = 4 * KIB


async def scattered(fs: Filesystem, pages: list[int], size: int = PAGE) -> Ino:
    """Write a file page by page, each in its own commit."""
    ino = (await fs.stores.meta.create(ROOT_INO, b"file", 0o644, ME, exclusive=True))[0].attr.ino
    for number, page in enumerate(pages):
        await put(fs, ino, page * PAGE, bytes([number % 251 + 1]) * size)
    await let_go(fs.stores.meta, ino)
    return ino


async def put(fs: Filesystem, ino: Ino, pos: int, data: bytes) -> None:
    slice_id = await fs.stores.meta.reserve_slices(1)
    extent = Extent(pos, slice_id, len(data), b"", data)
    await fs.stores.meta.commit(Commit(ino, (extent,), durable=False))


async def test_many_pages_become_one_slice(drive: Drive) -> None:
    fs = await drive.mount()
    pages = list(range(300))
    random.Random(1).shuffle(pages)
    ino = await scattered(fs, pages)
    before = await fs.getattr(ino)
    expected = await content(fs)
    assert await compact.compact_file(fs, ino) == 1
    file_map = await fs.file_map(ino)
    assert len(file_map.refs) == 1
    assert file_map.attr == before
    assert await content(await drive.mount()) == expected
    assert await compact.compact_file(fs, ino) == 0


async def test_a_small_result_stays_inline(drive: Drive) -> None:
    fs = await drive.mount()
    ino = await scattered(fs, [n * 2 % 15 for n in range(15)])
    assert await compact.compact_file(fs, ino, refs=8) in (0, 1)
    pages = [*range(0, 16, 2), *range(1, 16, 2)]
    other = await fs.stores.meta.create(ROOT_INO, b"other", 0o644, ME, exclusive=True)
    for page in pages:
        await put(fs, other[0].attr.ino, page * PAGE, bytes([page]) * PAGE)
    assert await compact.compact_file(fs, other[0].attr.ino, refs=16) == 1
    (ref,) = (await fs.file_map(other[0].attr.ino)).refs
    assert ref.inline is not None
    assert drive.blocks.objects == {}


async def test_holes_stay_holes(drive: Drive) -> None:
    fs = await drive.mount()
    first = [*range(0, 40, 2), *range(1, 40, 2)]
    ino = await scattered(fs, [*first, *(1000 + page for page in first)])
    holes = (await fs.getattr(ino)).holes
    assert holes > 0
    expected = await content(fs)
    assert await compact.compact_file(fs, ino, refs=80) == 2
    assert (await fs.getattr(ino)).holes == holes
    assert len((await fs.file_map(ino)).refs) == 2
    assert await content(await drive.mount()) == expected


async def test_a_large_slice_below_goes_when_nothing_of_it_shows(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs)
    await handle.write(0, bytes(range(256)) * (MIB // 256))
    await handle.close()
    for page in range(0, 256, 2):
        await put(fs, handle.ino, page * PAGE, bytes([page]) * PAGE)
    expected = await content(fs)
    assert await compact.compact_file(fs, handle.ino, refs=100) == 1
    assert len((await fs.file_map(handle.ino)).refs) == 1
    assert await content(await drive.mount()) == expected
    await gc.collect(fs, grace=NOW)
    assert len(drive.blocks.objects) == 1
    assert await content(await drive.mount()) == expected


@pytest.mark.parametrize("change", ["above", "over", "truncate", "grow", "replace"])
async def test_who_writes_meanwhile_wins(
    drive: Drive, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, other = await drive.mount(), await drive.mount()
    ino = await scattered(fs, [*range(0, 64, 2), *range(1, 64, 2)])
    model = bytearray(await content(fs))
    meta = drive.metas[0]
    do = meta.compact

    async def late(stretch: object) -> bool:
        if change == "above":
            await put(other, ino, 5 * PAGE + 7, b"new")
            model[5 * PAGE + 7 : 5 * PAGE + 10] = b"new"
        elif change == "over":
            await put(other, ino, 4 * PAGE, b"n" * 3 * PAGE)
            model[4 * PAGE : 7 * PAGE] = b"n" * 3 * PAGE
        elif change in ("truncate", "grow"):
            await other.setattr(ino, SetAttr(size=10 * PAGE + 3))
            del model[10 * PAGE + 3 :]
            if change == "grow":
                await other.setattr(ino, SetAttr(size=64 * PAGE))
                model.extend(bytes(64 * PAGE - len(model)))
        else:
            await other.unlink(ROOT_INO, b"file")
        return await do(stretch)  # type: ignore[arg-type]  # passed on as it came

    monkeypatch.setattr(meta, "compact", late)
    done = await compact.compact_file(fs, ino, refs=64)
    monkeypatch.setattr(meta, "compact", do)
    assert done == (1 if change in ("above", "over") else 0)
    if change != "replace":
        assert await content(await drive.mount()) == bytes(model)
    await gc.collect(other, grace=NOW)
    assert len(drive.blocks.objects) == done


@pytest.mark.parametrize("seed", range(40))
async def test_random_files_keep_their_bytes(drive: Drive, seed: int) -> None:
    fs, other = await drive.mount(), await drive.mount()
    dice = random.Random(seed)
    handle = await create(fs)
    ino, model = handle.ino, bytearray()
    for step in range(120):
        kind = dice.random()
        if kind < 0.8:
            pos = dice.randrange(0, 400 * KIB)
            data = bytes([step + 1]) * dice.choice([100, PAGE, 3 * PAGE, 80 * KIB])
            await handle.write(pos, data)
            await handle.flush()
            model.extend(bytes(max(0, pos + len(data) - len(model))))
            model[pos : pos + len(data)] = data
        elif kind < 0.9:
            size = dice.randrange(0, 450 * KIB)
            await fs.setattr(ino, SetAttr(size=size))
            del model[size:]
            model.extend(bytes(size - len(model)))
        else:
            await compact.compact_file(other, ino, refs=dice.choice([4, 16, 40]))
            if dice.random() < 0.5:
                await gc.collect(other, grace=NOW)
        assert (await fs.getattr(ino)).size == len(model)
    await compact.compact_file(other, ino, refs=2)
    await gc.collect(other, grace=NOW)
    assert await handle.read(0, len(model) + 1) == bytes(model)
    assert await content(await drive.mount()) == bytes(model)
    await handle.close()


def test_stretches_take_in_their_newest_ref_and_do_not_overlap() -> None:
    attr = Attr(Ino(2), 0o100644, 1, 0, 0, 0, 8 * MIB, 0, 0, 0, 1)
    for seed in range(200):
        dice = random.Random(seed)
        refs = []
        for number in range(dice.randrange(10, 300)):
            size = dice.choice([512, PAGE, 64 * KIB, 3 * MIB]) if number else 8 * MIB
            pos = dice.randrange(0, 8 * MIB - size + 1)
            refs.append(ref(number + 1, pos, size))
        layout = FileLayout(FileMap(attr, tuple(refs)))
        last = 0
        for start, end in compact.stretches(layout, 0, refs):
            assert last <= start < end
            last = end
            assert layout.between(start, end)[0].start == start
            over = [one for one in refs if one.pos < end and start < one.pos + one.length]
            assert start <= over[-1].pos
            assert over[-1].pos + over[-1].length <= end


def ref(number: int, pos: int, size: int) -> SliceRef:
    data = bytes(size)
    return SliceRef(pos, number, size, 0, size, b"", data)  # type: ignore[arg-type]  # a number


async def test_upkeep_finds_files_that_were_read_in_many_pieces(drive: Drive) -> None:
    fs = await drive.mount()
    pages = list(range(300))
    random.Random(2).shuffle(pages)
    ino = await scattered(fs, pages)
    expected = await content(fs)
    await background.run_round(fs)
    assert len((await fs.file_map(ino)).refs) == 1
    assert await content(fs) == expected


async def test_upkeep_finds_files_that_were_only_written_in_many_pieces(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs)
    pages = list(range(300))
    random.Random(3).shuffle(pages)
    for page in pages:
        await handle.write(page * PAGE, bytes([page % 251 + 1]) * PAGE)
        await handle.fsync()
    await background.run_round(fs)
    assert len((await fs.file_map(handle.ino)).refs) < FRAGMENTED
    await handle.close()


async def test_a_damaged_file_keeps_no_upkeep_waiting(drive: Drive) -> None:
    fs = await drive.mount()
    gone = await create(fs, b"gone")
    await gone.write(0, bytes(MIB))
    await gone.close()
    pages = list(range(300))
    random.Random(4).shuffle(pages)
    ino = await scattered(fs, pages)
    stored = await fs.stores.meta.reserve_slices(1)
    # A missing block.
    lost = Extent(300 * PAGE, stored, MIB, bytes(4 * 8), None)
    await fs.stores.meta.commit(Commit(ino, (lost,), durable=False))
    await fs.rename(ROOT_INO, b"file", ROOT_INO, b"damaged")
    whole = await scattered(fs, pages)
    await fs.unlink(ROOT_INO, b"gone")
    fs.stores.note_fragmented(whole)
    fs.stores.note_fragmented(ino)
    with pytest.raises(Corrupt):
        await background.run_round(fs, background.Pace(grace=NOW))
    assert len((await fs.file_map(whole)).refs) == 1
    assert len(drive.blocks.objects) == 1


async def test_a_refused_copy_is_made_in_the_next_round(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, other = await drive.mount(), await drive.mount()
    pages = list(range(300))
    random.Random(5).shuffle(pages)
    ino = await scattered(fs, pages)
    compacting = fs.stores.meta.compact

    async def late(stretch: Stretch) -> bool:
        await other.setattr(ino, SetAttr(size=5 * PAGE))
        await other.setattr(ino, SetAttr(size=300 * PAGE))
        for page in pages:
            await put(other, ino, page * PAGE, b"n" * PAGE)
        monkeypatch.setattr(fs.stores.meta, "compact", compacting)
        return await compacting(stretch)

    monkeypatch.setattr(fs.stores.meta, "compact", late)
    fs.stores.note_fragmented(ino)
    await background.run_round(fs)
    assert len((await fs.file_map(ino)).refs) > FRAGMENTED
    await background.run_round(fs)
    assert len((await fs.file_map(ino)).refs) < FRAGMENTED


async def test_a_copy_of_an_epoch_that_has_ended_is_not_put_in(drive: Drive) -> None:
    """A frozen process continues its compaction after the objects of its copy were deleted."""
    fs, other = await drive.mount(drive.blocks), await drive.mount()
    pages = list(range(300))
    random.Random(6).shuffle(pages)
    ino = await scattered(fs, pages)
    expected = await content(other)

    async def freeze(_key: str) -> None:
        drive.blocks.after_put = None
        drive.volume.end(fs.stores.meta.session)
        await gc.collect(other, grace=NOW)
        await fs.mkdir(ROOT_INO, b"awake", 0o755, ME)

    drive.blocks.after_put = freeze
    with pytest.raises(Fenced):
        await compact.compact_file(fs, ino)
    assert await content(other) == expected
    await gc.collect(other, grace=NOW)
    assert drive.blocks.objects == {}
    assert await compact.compact_file(fs, ino) == 1
    assert await content(other) == expected


async def test_a_copy_that_could_not_be_given_up_is_told_later(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, other = await drive.mount(drive.blocks), await drive.mount()
    pages = list(range(300))
    random.Random(7).shuffle(pages)
    ino = await scattered(fs, pages)
    give_up = fs.stores.meta.give_up

    async def refused(stretch: Stretch) -> bool:
        return stretch.ino == 0

    async def outage(slices: Mapping[SliceId, int]) -> None:
        raise Unavailable(f"an outage: {len(slices)} are not told")

    monkeypatch.setattr(fs.stores.meta, "compact", refused)
    monkeypatch.setattr(fs.stores.meta, "give_up", outage)
    assert await compact.compact_file(fs, ino) == 0
    monkeypatch.setattr(fs.stores.meta, "give_up", give_up)
    assert len(drive.blocks.objects) == 1
    await fs.close()
    await gc.collect(other, grace=NOW)
    assert drive.blocks.objects == {}


async def test_all_files_that_need_it_are_found(drive: Drive) -> None:
    fs = await drive.mount()
    await scattered(fs, [*range(0, 40, 2), *range(1, 40, 2)])
    await fs.rename(ROOT_INO, b"file", ROOT_INO, b"first")
    await scattered(fs, [*range(0, 40, 2), *range(1, 40, 2)])
    await (await create(fs, b"empty")).close()
    counts: list[int] = []
    assert await compact.compact_all(fs, refs=40, progress=counts.append) == 2
    assert counts == [1, 2]


async def test_one_session_does_the_upkeep_for_all(drive: Drive) -> None:
    fs, other = await drive.mount(), await drive.mount()
    assert await fs.stores.upkeep.claim_upkeep(timedelta(seconds=60))
    assert not await other.stores.upkeep.claim_upkeep(timedelta(seconds=60))
    assert await fs.stores.upkeep.claim_upkeep(timedelta(seconds=60))
    await fs.close()
    assert await other.stores.upkeep.claim_upkeep(timedelta(seconds=60))
