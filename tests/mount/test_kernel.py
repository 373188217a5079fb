"""What messages to the kernel do, with a server that answers when the test wants."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from box_guest.mount import kernel as kernels
from box_guest.mount.kernel import Kernel
from tests.harness.rawfuse import GETATTR, LOOKUP, RawFuse, served
from wrkfs.types import Ino

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INO = Ino(7)
VALID = 3600


class Clock:
    """Stands for module `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        """Stands still."""
        return self.now


@pytest.fixture
def raw(tmp_path: Path) -> Iterator[RawFuse]:
    """A mount on `tmp_path`."""
    with served(tmp_path) as made:
        yield made


async def size(raw: RawFuse, descriptor: int) -> int:
    """What fstat says, which has to be asked for: 2."""
    asking = asyncio.create_task(asyncio.to_thread(os.fstat, descriptor))
    raw.answer_attributes(await asyncio.to_thread(raw.read, GETATTR), 2)
    return (await asking).st_size


async def opened(raw: RawFuse, directory: Path, kernel: Kernel) -> int:
    """A descriptor on a file whose attributes were answered: size 1."""
    opening = asyncio.create_task(asyncio.to_thread(os.open, directory / "f", os.O_PATH))
    request = await asyncio.to_thread(raw.read, LOOKUP)
    kernel.named(INO)
    raw.answer_entry(request, INO, 1, VALID)
    return await opening


async def test_attributes_are_dropped(raw: RawFuse, tmp_path: Path) -> None:
    kernel = Kernel(raw.descriptor)
    descriptor = await opened(raw, tmp_path, kernel)
    try:
        assert os.fstat(descriptor).st_size == 1
        await kernel.drop([], {INO})
        assert await size(raw, descriptor) == 2
    finally:
        os.close(descriptor)


@pytest.mark.promise("V1")
async def test_attributes_are_dropped_of_an_inode_that_the_kernel_is_just_making(
    raw: RawFuse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "ENTRY_AGE", 3600.0)
    kernel = Kernel(raw.descriptor)
    opening = asyncio.create_task(asyncio.to_thread(os.open, tmp_path / "f", os.O_PATH))
    request = await asyncio.to_thread(raw.read, LOOKUP)
    # As if the answer was written, and whoever asked had no processor yet.
    kernel.named(INO)
    dropping = asyncio.create_task(kernel.drop([], {INO}))
    await asyncio.sleep(0)
    raw.answer_entry(request, INO, 1, VALID)
    await dropping
    descriptor = await opening
    try:
        assert await size(raw, descriptor) == 2
    finally:
        os.close(descriptor)


async def test_nobody_waits_for_what_the_kernel_does_not_know(
    raw: RawFuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was named long ago, was forgotten since, or never came with a name."""
    monkeypatch.setattr(kernels, "ENTRY_AGE", 3600.0)
    clock = Clock()
    monkeypatch.setattr(kernels, "time", clock)
    kernel = Kernel(raw.descriptor)
    assert kernel.drop_attributes({INO}) == []
    for lookups in (1, 2):
        for _ in range(lookups):
            kernel.named(INO)
        assert kernel.drop_attributes({INO}) == [INO]
        kernel.forgot(INO, lookups)
        assert kernel.drop_attributes({INO}) == []
    kernel.named(INO)
    # Of an answer before that one.
    kernel.forgot(INO, 2)
    assert kernel.drop_attributes({INO}) == [INO]
    clock.now += 3601.0
    assert kernel.drop_attributes({INO}) == [INO], "one of the time before"
    clock.now += 3601.0
    assert kernel.drop_attributes({INO}) == []
    kernel.named(INO)
    clock.now += 3 * 3601.0
    assert kernel.drop_attributes({INO}) == []


@pytest.mark.promise("V1")
@pytest.mark.parametrize("taken_over", [False, True])
async def test_attributes_of_a_listing_are_dropped_when_the_kernel_has_taken_it_over(
    raw: RawFuse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, taken_over: bool
) -> None:
    """Also of what is no more than listed there, as a directory with a lease of its own."""
    monkeypatch.setattr(kernels, "ENTRY_AGE", 0.0)
    monkeypatch.setattr(kernels, "LISTING_AGE", 3600.0)
    kernel = Kernel(raw.descriptor)
    opening = asyncio.create_task(asyncio.to_thread(os.open, tmp_path / "f", os.O_PATH))
    request = await asyncio.to_thread(raw.read, LOOKUP)
    # As if this was the listing, and its reader had no processor yet.
    kernel.listed(1, Ino(1), {INO})
    dropping = asyncio.create_task(kernel.drop([], {INO}))
    done, _ = await asyncio.wait({dropping}, timeout=0.02)
    assert not done
    raw.answer_entry(request, INO, 1, 0 if taken_over else VALID)
    descriptor = await opening
    try:
        if taken_over:
            kernel.taken_over(1)
        await dropping
        assert await size(raw, descriptor) == 2
    finally:
        os.close(descriptor)


async def test_nobody_waits_for_what_another_listing_tells(raw: RawFuse) -> None:
    kernel = Kernel(raw.descriptor)
    kernel.listed(1, Ino(1), {Ino(8)})
    dropping = asyncio.create_task(kernel.drop([], {INO}))
    await asyncio.sleep(0)
    assert dropping.done()
