"""Contract of `MetaStore`, ranges of files: holes, room and copies, on memory and on PostgreSQL."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.harness.volumes.extents import Objects
from tests.harness.volumes.metastore import let_go
from wrkfs import errors
from wrkfs.layout import CHUNK_SIZE, KIB, MAX_FILE_SIZE
from wrkfs.types import ROOT_INO, Caller, Commit, Ino, SetAttr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.harness.volumes.metastore import MetaVolume
    from wrkfs.meta.interface.store import MetaStore
    from wrkfs.types import SliceRef

ME = Caller(1000, 1001)


@pytest.fixture
def objects() -> Objects:
    """Where the slices of this test are."""
    return Objects()


async def file(meta: MetaStore, name: bytes = b"f") -> Ino:
    return (await meta.create(ROOT_INO, name, 0o644, ME, exclusive=True))[0].attr.ino


async def put(meta: MetaStore, objects: Objects, ino: Ino, pos: int, data: bytes) -> None:
    await meta.commit(Commit(ino, (objects.stored(pos, data),), durable=False))


async def used(meta: MetaStore) -> int:
    return (await meta.statfs()).bytes_used


async def test_a_cleared_range_is_a_hole(
    meta_volume: MetaVolume, meta: MetaStore, other: MetaStore, objects: Objects
) -> None:
    ino = await file(meta)
    await put(meta, objects, ino, 0, b"a" * 100)
    await put(meta, objects, ino, 60, b"b" * 20)
    before = await meta.getattr(ino)
    assert (await other.lookup(ROOT_INO, b"f")).holes == 0
    assert objects.read(await other.file_map(ino))[10] == ord("a")
    attr = await meta.allocate(ino, 10, 20, clear=True, grow=False)
    assert (attr.size, attr.holes) == (100, 20)
    assert attr.version > before.version
    found = await other.file_map(ino)
    assert objects.read(found) == b"a" * 10 + bytes(20) + b"a" * 30 + b"b" * 20 + b"a" * 20
    assert await used(meta) == 80
    attr = await meta.allocate(ino, 90, 50, clear=True, grow=False)
    assert (attr.size, attr.holes) == (100, 30)
    attr = await meta.allocate(ino, 90, 50, clear=True, grow=True)
    assert (attr.size, attr.holes) == (140, 70)
    attr = await meta.allocate(ino, 0, 200, clear=True, grow=False)
    assert (attr.size, attr.holes) == (140, 140)
    assert await used(meta) == 0
    assert len(await meta_volume.freed_slices()) == 2


async def test_room_is_checked_and_not_reserved(
    meta_volume: MetaVolume, meta: MetaStore, objects: Objects
) -> None:
    await meta_volume.limit(1000, None)
    ino = await file(meta)
    await put(meta, objects, ino, 0, b"a" * 600)
    attr = await meta.allocate(ino, 0, 1000, clear=False, grow=False)
    assert attr.size == 600
    attr = await meta.allocate(ino, 0, 1000, clear=False, grow=True)
    assert (attr.size, attr.holes) == (1000, 400)
    assert await used(meta) == 600
    with pytest.raises(errors.QuotaExceeded):
        await meta.allocate(ino, 0, 1001, clear=False, grow=True)
    assert (await meta.getattr(ino)).size == 1000


async def test_a_copy_shares_its_slices(
    meta_volume: MetaVolume, meta: MetaStore, other: MetaStore, objects: Objects
) -> None:
    source, target = await file(meta, b"s"), await file(meta, b"t")
    await put(meta, objects, source, 0, b"a" * 100)
    await put(meta, objects, source, 40, b"b" * 20)
    await put(meta, objects, target, 0, b"c" * 50)
    assert (await other.lookup(ROOT_INO, b"t")).size == 50
    assert objects.read(await other.file_map(target)) == b"c" * 50
    attr = await meta.copy_range(source, 10, target, 30, 60)
    assert (attr.size, attr.holes) == (90, 0)
    copied = b"c" * 30 + b"a" * 30 + b"b" * 20 + b"a" * 10
    assert objects.read(await other.file_map(target)) == copied
    assert await used(meta) == 130, "the copy uses nothing, and frees what it replaces"
    await let_go(meta, source)
    await meta.unlink(ROOT_INO, b"s")
    assert objects.read(await other.file_map(target)) == copied
    assert await meta_volume.freed_slices() == set()
    await let_go(meta, target)
    await meta.unlink(ROOT_INO, b"t")
    assert await used(meta) == 0
    assert len(await meta_volume.freed_slices()) == 3


async def test_inline_slices_are_shared(
    meta: MetaStore, other: MetaStore, objects: Objects
) -> None:
    source, target = await file(meta, b"s"), await file(meta, b"t")
    await meta.commit(Commit(source, (objects.inline(0, b"inline"),), durable=False))
    await meta.copy_range(source, 0, target, 0, 6)
    await meta.commit(Commit(source, (objects.inline(0, b"others"),), durable=False))
    await meta.commit(Commit(target, (objects.inline(6, b"!"),), durable=False))
    assert objects.read(await other.file_map(target)) == b"inline!"
    assert objects.read(await other.file_map(source)) == b"others"


async def test_a_copy_within_a_file(meta: MetaStore, objects: Objects) -> None:
    ino = await file(meta)
    await put(meta, objects, ino, 0, b"abcd" * 10)
    await meta.copy_range(ino, 0, ino, 100, 40)
    await meta.copy_range(ino, 100, ino, 0, 40)
    assert objects.read(await meta.file_map(ino)) == b"abcd" * 10 + bytes(60) + b"abcd" * 10
    with pytest.raises(errors.InvalidArgument):
        await meta.copy_range(ino, 0, ino, 39, 40)


async def test_what_is_refused(meta: MetaStore, objects: Objects) -> None:
    source, target = await file(meta, b"s"), await file(meta, b"t")
    await put(meta, objects, source, 0, b"data")
    with pytest.raises(errors.OutOfRange):
        await meta.copy_range(source, 1, target, 0, 4)
    with pytest.raises(errors.InvalidArgument):
        await meta.copy_range(source, 0, target, 0, 0)
    with pytest.raises(errors.InvalidArgument):
        await meta.allocate(source, -1, 4, clear=True, grow=False)
    with pytest.raises(errors.FileTooBig):
        await meta.allocate(source, MAX_FILE_SIZE, 1, clear=False, grow=True)
    with pytest.raises(errors.FileTooBig):
        await meta.copy_range(source, 0, target, MAX_FILE_SIZE, 4)
    with pytest.raises(errors.IsDirectory):
        await meta.allocate(ROOT_INO, 0, 4, clear=True, grow=False)
    with pytest.raises(errors.IsDirectory):
        await meta.copy_range(source, 0, ROOT_INO, 0, 4)
    with pytest.raises(errors.Stale):
        await meta.allocate(Ino(1 << 40), 0, 4, clear=True, grow=False)
    assert objects.read(await meta.file_map(source)) == b"data"


@pytest.mark.parametrize(
    ("seed", "steps", "bases"), [(0, 60, (0,)), (1, 60, (0,)), (2, 12, (0, CHUNK_SIZE))]
)
async def test_random_changes_agree_with_bytes(
    meta: MetaStore, objects: Objects, seed: int, steps: int, bases: tuple[int, ...]
) -> None:
    chance = random.Random(seed)
    inos = [await file(meta, name) for name in (b"a", b"b", b"c")]
    models = [bytearray() for _ in inos]

    def place() -> int:
        near = chance.choice(bases) + chance.randrange(-8, 16) * KIB
        return max(0, near + chance.randrange(3))

    for _ in range(steps):
        number, other = chance.randrange(3), chance.randrange(3)
        model, pos, size = models[number], place(), chance.randrange(1, 6 * KIB)
        action = chance.choice(("write", "write", "clear", "copy", "copy", "cut"))
        if action == "write":
            data = chance.randbytes(size)
            make = chance.choice((objects.stored, objects.inline))
            await meta.commit(Commit(inos[number], (make(pos, data),), durable=False))
            _write(model, pos, data)
        elif action == "clear":
            grow = chance.random() < 0.3
            await meta.allocate(inos[number], pos, size, clear=True, grow=grow)
            if grow or pos < len(model):
                zeros = size if grow else min(size, len(model) - pos)
                _write(model, pos, bytes(zeros))
        elif action == "cut":
            await meta.setattr(inos[number], SetAttr(size=pos))
            del model[pos:]
            model.extend(bytes(pos - len(model)))
        else:
            start = place()
            size = min(size, len(models[other]) - start)
            if size <= 0 or (number == other and abs(start - pos) < size):
                continue
            await meta.copy_range(inos[other], start, inos[number], pos, size)
            _write(model, pos, bytes(models[other][start : start + size]))
        found = await meta.file_map(inos[number])
        assert objects.read(found) == model
        assert found.attr.holes == _uncovered(found.attr.size, found.refs)
    for number, name in enumerate((b"a", b"b", b"c")):
        await let_go(meta, inos[number])
        await meta.unlink(ROOT_INO, name)
    assert await used(meta) == 0


def _write(model: bytearray, pos: int, data: bytes) -> None:
    model.extend(bytes(max(0, pos - len(model))))
    model[pos : pos + len(data)] = data


def _uncovered(size: int, refs: Sequence[SliceRef]) -> int:
    shown = bytearray(size)
    for ref in refs:
        shown[ref.pos : ref.pos + ref.length] = b"\1" * ref.length
    return shown.count(0)
