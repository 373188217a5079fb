"""The bound on dirty memory; write(2) calls that arrive in two requests."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from tests.harness.simulation.virtual_loop import VirtualLoop
from wrkfs.dirty import ARRIVED_WAIT, PAGE, DirtyBudget, SplitWrite


async def test_writers_wait_while_too_much_is_dirty() -> None:
    budget = DirtyBudget(100)
    await budget.acquire(60)
    late = asyncio.create_task(budget.acquire(50))
    small = asyncio.create_task(budget.acquire(10))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not late.done()
    assert not small.done(), "first come, first served"
    budget.release(60)
    await asyncio.gather(late, small)
    assert budget.used == 60
    budget.release(60)
    await budget.acquire(1000)
    assert budget.used == 1000


async def test_a_cancelled_waiter_gives_its_bytes_back() -> None:
    budget = DirtyBudget(100)
    await budget.acquire(100)
    waiting = asyncio.create_task(budget.acquire(50))
    await asyncio.sleep(0)
    budget.release(100)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert budget.used == 0


PATIENCE = 0.05


async def waited(split: SplitWrite) -> float:
    """Return the seconds that `wait` takes."""
    began = asyncio.get_running_loop().time()
    await split.wait(PATIENCE)
    return asyncio.get_running_loop().time() - began


def stand_still(seconds: float) -> None:
    """Block the process, as if it were not scheduled."""
    time.sleep(seconds)


def test_a_write_that_is_no_first_piece_is_not_waited_for() -> None:
    async def play() -> None:
        split = SplitWrite()
        assert await waited(split) == 0
        for offset, size in ((0, 10), (0, PAGE), (PAGE, 3 * PAGE), (10, PAGE), (5, 6)):
            split.record(offset, size)
            assert await waited(split) == 0

    VirtualLoop(0).run(play())


def test_a_first_piece_is_waited_for_until_the_next_comes_or_time_is_over() -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        split = SplitWrite()
        for end in (lambda: split.record(PAGE, 7), split.end):
            split.record(100, PAGE - 100)
            loop.call_later(PATIENCE / 2, end)
            assert await waited(split) == pytest.approx(PATIENCE / 2)
        split.record(100, PAGE - 100)
        assert await waited(split) == pytest.approx(PATIENCE)
        assert await waited(split) == 0

    VirtualLoop(0).run(play())


def test_the_next_write_waits_until_who_waited_has_gone_on() -> None:
    """A commit takes a whole write, however quickly the next requests follow."""

    async def play() -> None:
        split = SplitWrite()
        order: list[str] = []

        async def write() -> None:
            for _ in range(3):
                await split.before_write()
                order.append("first piece")
                split.record(100, PAGE - 100)
                split.record(PAGE, 7)
                order.append("rest")

        async def take() -> None:
            await split.wait(PATIENCE)
            assert not split.pending
            order.append("taken")

        split.record(100, PAGE - 100)
        taking = [asyncio.create_task(take()) for _ in range(2)]
        await asyncio.sleep(PATIENCE / 2)
        began = asyncio.get_running_loop().time()
        await write()
        assert asyncio.get_running_loop().time() == began
        await asyncio.gather(*taking)
        assert order == ["taken"] * 2 + ["first piece", "rest"] * 3

    VirtualLoop(0).run(play())


def test_a_rest_that_is_here_is_waited_for() -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        split = SplitWrite()
        for end in (lambda: split.record(PAGE, 7), split.end):
            split.record(100, PAGE - 100)
            loop.call_later(PATIENCE / 2, split.rest_arrives)
            loop.call_later(10, end)
            assert await waited(split) == pytest.approx(10)
        split.record(100, PAGE - 100)
        assert await waited(split) == pytest.approx(PATIENCE), "that was another rest"
        split.record(100, PAGE - 100)
        split.rest_arrives()
        assert await waited(split) == pytest.approx(ARRIVED_WAIT, abs=2 * PATIENCE), "D3"

    VirtualLoop(0).run(play())


async def test_what_is_awaited_is_the_continuation() -> None:
    split = SplitWrite()
    assert not split.is_rest(0)
    split.record(100, PAGE - 100)
    assert split.is_rest(PAGE)
    assert not split.is_rest(100)
    split.record(PAGE, 1)
    assert not split.is_rest(PAGE + 1)


async def test_a_rest_that_came_while_the_process_stood_still_is_not_passed_over() -> None:
    split = SplitWrite()
    reader, writer = os.pipe()
    taken = asyncio.Event()

    async def take() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        split.record(PAGE, 7)
        taken.set()

    def readable() -> None:
        os.read(reader, 1)
        tasks.append(asyncio.create_task(take()))

    tasks: list[asyncio.Task[None]] = []
    try:
        asyncio.get_running_loop().add_reader(reader, readable)
        split.record(100, PAGE - 100)
        waiting = asyncio.create_task(split.wait(PATIENCE))
        await asyncio.sleep(0)
        os.write(writer, b"x")
        stand_still(2 * PATIENCE)
        await waiting
        assert taken.is_set()
    finally:
        asyncio.get_running_loop().remove_reader(reader)
        os.close(reader)
        os.close(writer)
