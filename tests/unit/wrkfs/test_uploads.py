"""Uploads in an outage of the store fail after its deadline, however many wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.doubles.meta_store import MemoryMeta
from tests.doubles.meta_volume import MemoryVolume
from tests.harness.simulation.virtual_loop import VirtualLoop
from tests.unit.wrkfs.drive import Drive, create
from wrkfs.data.retry import DEADLINE
from wrkfs.errors import Unavailable
from wrkfs.layout import BLOCK_SIZE, INLINE_MAX
from wrkfs.write_path import SLICE_RANGE, SLICE_RANGE_MAX, UPLOADS, SliceIds

if TYPE_CHECKING:
    from wrkfs.handle import FileHandle

SLOW = 35.0
"""Seconds of a PUT to a slow store."""


async def gone(_key: str) -> None:
    """Behave like the client of an unreachable store."""
    await asyncio.sleep(DEADLINE)
    raise Unavailable("the store")


async def slow(_key: str) -> None:
    """Behave like a slow store."""
    await asyncio.sleep(SLOW)


async def told(handle: FileHandle) -> float:
    """Return the time at which fsync reports the loss."""
    with pytest.raises(Unavailable):
        await handle.fsync()
    return asyncio.get_running_loop().time()


async def outage() -> list[float]:
    """Write two files with more blocks than upload slots; return the times of their errors."""
    drive = Drive()
    fs = await drive.mount(drive.blocks)
    drive.blocks.before_put = gone
    handles = [await create(fs, name) for name in (b"a", b"b")]
    data = bytes(BLOCK_SIZE)
    for handle in handles:
        for number in range(UPLOADS + 1):
            await handle.write(number * BLOCK_SIZE, data)
    times = await asyncio.gather(*(told(handle) for handle in handles))
    drive.blocks.before_put = None
    for handle in handles:
        await handle.write(0, data + b"again")
        await handle.close()
    await drive.close()
    return times


async def slowness() -> float:
    """Write blocks that wait for a slot longer than the deadline; return the end time."""
    drive = Drive()
    fs = await drive.mount(drive.blocks)
    drive.blocks.before_put = slow
    handles = [await create(fs, b"%d" % number) for number in range(3 * UPLOADS)]
    for handle in handles:
        await handle.write(0, bytes(INLINE_MAX + 1))
    await asyncio.gather(*(handle.close() for handle in handles))
    await drive.close()
    return asyncio.get_running_loop().time()


def test_everybody_is_told_when_the_deadline_is_over() -> None:
    for time in VirtualLoop(0).run(outage()):
        assert DEADLINE <= time < 1.1 * DEADLINE


def test_a_slow_store_is_no_outage() -> None:
    assert VirtualLoop(0).run(slowness()) > DEADLINE


async def test_slice_ids_are_reserved_in_ranges_that_grow() -> None:
    """A session that writes little and is killed leaves few ids to collection."""
    volume = MemoryVolume()
    meta = MemoryMeta(volume)
    await meta.start()
    ids, taken = SliceIds(meta), list[int]()
    for _ in range(3 * SLICE_RANGE_MAX):
        if not ids.ready:
            await ids.refill()
        taken.append(ids.take())
    sizes = [one.count for one in volume.ranges]
    assert sizes[:3] == [SLICE_RANGE, 2 * SLICE_RANGE, 4 * SLICE_RANGE]
    assert sizes[-1] == max(sizes) == SLICE_RANGE_MAX
    assert len(set(taken)) == len(taken)
    await meta.close()
