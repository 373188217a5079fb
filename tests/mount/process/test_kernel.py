"""What messages to the kernel do, with a server that answers when the test wants."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from box_guest.mount import kernel as kernels
from box_guest.mount.kernel import Kernel
from tests.harness.mounts.rawfuse import GETATTR, LOOKUP, RawFuse, served
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


async def test_an_inode_that_is_forgotten_with_all_its_answers_is_waited_for_by_nobody(
    raw: RawFuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when only the last of these answers are young."""
    monkeypatch.setattr(kernels, "ENTRY_AGE", 3600.0)
    clock = Clock()
    monkeypatch.setattr(kernels, "time", clock)
    kernel = Kernel(raw.descriptor)
    for _ in range(3):
        kernel.named(INO)
    kernel.answered(INO)
    clock.now += 3 * 3601.0
    kernel.named(INO)
    kernel.forgot(INO, 4)
    assert kernel.drop_attributes({INO}) == [INO], "one answer is on its way"
    kernel.forgot(INO, 1)
    assert kernel.drop_attributes({INO}) == []


async def test_a_receipt_ends_the_wait_for_its_listing_alone(raw: RawFuse) -> None:
    kernel = Kernel(raw.descriptor)
    receipt, other = Ino(9), Ino(10)
    for number, ino in enumerate((receipt, other)):
        kernel.answered(ino)
        kernel.listed(number, Ino(1), {INO}, ino)
    assert not kernel.can_receive(receipt)
    dropping = asyncio.create_task(kernel.drop([Ino(1)], {INO}))
    await asyncio.sleep(0)
    assert not kernel.forgot(receipt, 1)
    assert kernel.can_receive(receipt)
    done, _ = await asyncio.wait({dropping}, timeout=0.02)
    assert not done
    assert not kernel.forgot(other, 1)
    await dropping
    kernel.listed(3, Ino(1), {INO}, receipt)
    kernel.taken_over(3)
    assert kernel.can_receive(receipt)


async def test_the_end_of_an_inode_is_no_receipt(raw: RawFuse) -> None:
    """The kernel knew the inode from more answers than one, and lets it go at that moment."""
    kernel = Kernel(raw.descriptor)
    receipt = Ino(9)
    for _ in range(3):
        kernel.answered(receipt)
    kernel.listed(1, Ino(1), {INO}, receipt)
    assert kernel.forgot(receipt, 2)
    assert not kernel.can_receive(receipt)
    assert not kernel.forgot(receipt, 1)
    assert kernel.can_receive(receipt)


@pytest.mark.promise("V1")
@pytest.mark.parametrize("second", [False, True])
async def test_what_may_be_the_end_of_an_inode_is_a_receipt_some_time_later(
    raw: RawFuse, monkeypatch: pytest.MonkeyPatch, *, second: bool
) -> None:
    """One answer named the inode before: its end and the receipt look alike."""
    clock = Clock()
    monkeypatch.setattr(kernels, "time", clock)
    kernel = Kernel(raw.descriptor)
    receipt = Ino(9)
    kernel.answered(receipt)
    kernel.answered(receipt)
    kernel.listed(1, Ino(1), {INO}, receipt)
    dropping = asyncio.create_task(kernel.drop([Ino(1)], set()))
    await asyncio.sleep(0)
    assert not kernel.forgot(receipt, 1)
    assert kernel.drop_attributes({INO}) == [INO], "the listing may be on its way"
    done, _ = await asyncio.wait({dropping}, timeout=0.02)
    assert not done
    if second:
        assert not kernel.forgot(receipt, 1)
    else:
        clock.now += kernels.ENTRY_AGE
    assert kernel.drop_attributes({INO}) == []
    await dropping


@pytest.mark.promise("V1")
async def test_an_answer_that_the_kernel_may_refuse_makes_a_receipt_doubtful(
    raw: RawFuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A LOOKUP is answered with the inode while the receipt is due: a refusal looks alike."""
    clock = Clock()
    monkeypatch.setattr(kernels, "time", clock)
    kernel = Kernel(raw.descriptor)
    receipt = Ino(9)
    kernel.answered(receipt)
    kernel.listed(1, Ino(1), {INO}, receipt)
    kernel.answered(receipt)
    kernel.answered(receipt)
    assert not kernel.forgot(receipt, 1)
    assert kernel.drop_attributes({INO}) == [INO], "the listing may be on its way"
    clock.now += kernels.ENTRY_AGE
    assert kernel.drop_attributes({INO}) == []


@pytest.mark.promise("V1")
@pytest.mark.parametrize("is_new", [False, True])
async def test_counts_that_may_be_too_low_prove_nothing(
    raw: RawFuse, monkeypatch: pytest.MonkeyPatch, *, is_new: bool
) -> None:
    """The table of counts has an end. An inode above all dropped ones is counted exactly."""
    clock = Clock()
    monkeypatch.setattr(kernels, "time", clock)
    monkeypatch.setattr(kernels, "LOOKUPS_MAX", 2)
    kernel = Kernel(raw.descriptor)
    for ino in (20, 21, 22):
        kernel.answered(ino)
    receipt, other = (Ino(40), Ino(41)) if is_new else (Ino(19), Ino(18))
    kernel.answered(receipt)
    kernel.listed(1, Ino(1), {INO}, receipt)
    assert not kernel.forgot(receipt, 1)
    assert kernel.drop_attributes({INO}) == ([] if is_new else [INO])
    kernel.named(other)
    kernel.forgot(other, 1)
    assert kernel.drop_attributes({other}) == ([] if is_new else [other])
