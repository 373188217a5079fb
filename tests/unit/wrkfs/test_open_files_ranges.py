"""Ranges of open files: in order with bytes that are not committed, on memory stores."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.doubles.meta_store import MemoryMeta
from tests.unit.wrkfs.drive import content, create
from wrkfs.errors import BadDescriptor, NoSuchAddress, OutOfRange, QuotaExceeded
from wrkfs.fs import Filesystem
from wrkfs.layout import KIB
from wrkfs.open_files import COPY_MAX

if TYPE_CHECKING:
    from tests.unit.wrkfs.drive import Drive
    from wrkfs.types import Attr, Ino


async def test_a_copy_has_the_bytes_that_were_just_written(drive: Drive) -> None:
    fs = await drive.mount()
    source, target = await create(fs, b"s"), await create(fs, b"t")
    await source.write(0, b"source")
    await target.write(0, b"target that is longer")
    assert await fs.ranges.copy(source, 1, target, 2, 100) == 5
    await target.write(0, b"T")
    assert await fs.ranges.copy(source, 6, target, 0, 100) == 0
    await source.close()
    await target.close()
    assert await content(fs, b"t") == b"Taource" + b"that is longer"


async def test_the_copy_of_a_range_within_a_file(drive: Drive) -> None:
    fs = await drive.mount()
    file = await create(fs)
    await file.write(0, b"abcdef")
    assert await fs.ranges.copy(file, 0, file, 10, 6) == 6
    assert await file.read(0, 100) == b"abcdef" + bytes(4) + b"abcdef"
    await file.close()


async def test_a_cleared_range_comes_after_earlier_writes(drive: Drive) -> None:
    fs = await drive.mount()
    file = await create(fs)
    await file.write(0, b"x" * KIB)
    await fs.ranges.allocate(file, 10, 20, clear=True, grow=False)
    await file.write(15, b"y")
    assert await file.read(9, 8) == b"x" + bytes(5) + b"y" + bytes(1)
    assert await fs.ranges.next_hole(file, 0) == 10
    assert await fs.ranges.next_data(file, 10) == 15
    assert await fs.ranges.next_hole(file, KIB - 1) == KIB
    with pytest.raises(NoSuchAddress):
        await fs.ranges.next_data(file, KIB)
    with pytest.raises(NoSuchAddress):
        await fs.ranges.next_hole(file, -1)
    await file.close()


async def test_room_for_a_range(drive: Drive) -> None:
    fs = await drive.mount()
    drive.volume.bytes_limit = 100
    file = await create(fs)
    await file.write(0, b"x" * 40)
    await fs.ranges.allocate(file, 0, 100, clear=False, grow=True)
    with pytest.raises(QuotaExceeded):
        await fs.ranges.allocate(file, 0, 101, clear=False, grow=True)
    assert (await fs.getattr(file.ino)).size == 100
    await file.close()


async def test_the_access_mode_counts(drive: Drive) -> None:
    fs = await drive.mount()
    file = await create(fs)
    await file.write(0, b"data")
    reader = await fs.open(file.ino, os.O_RDONLY)
    writer = await fs.open(file.ino, os.O_WRONLY)
    with pytest.raises(BadDescriptor):
        await fs.ranges.allocate(reader, 0, 4, clear=True, grow=False)
    with pytest.raises(BadDescriptor):
        await fs.ranges.copy(writer, 0, file, 10, 4)
    with pytest.raises(BadDescriptor):
        await fs.ranges.copy(file, 0, reader, 10, 4)
    for handle in (file, reader, writer):
        await handle.close()


class Shrinking(MemoryMeta):
    """A memory store in which others cut the source before each copy."""

    lengths: list[int]

    async def copy_range(self, source: Ino, start: int, target: Ino, to: int, length: int) -> Attr:
        self.lengths.append(length)
        raise OutOfRange


async def test_a_source_that_others_cut_again_and_again(drive: Drive) -> None:
    meta = Shrinking(drive.volume)
    meta.lengths = []
    await meta.start()
    fs = Filesystem(meta, drive.blocks.attach())
    source, target = await create(fs, b"s"), await create(fs, b"t")
    await fs.ranges.allocate(source, 0, 3 * COPY_MAX, clear=False, grow=True)
    with pytest.raises(OutOfRange):
        await fs.ranges.copy(source, 0, target, 0, 3 * COPY_MAX)
    assert meta.lengths == [COPY_MAX] * 5
    await source.close()
    await target.close()
    await fs.close()
