"""The bound on dirty memory; writes that come in pieces."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from tests.harness.virtual_loop import VirtualLoop
from wrkfs.dirty import HERE_WAIT, PAGE, DirtyBudget, Pieces


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


async def waited(pieces: Pieces) -> float:
    """Seconds that `whole` takes."""
    began = asyncio.get_running_loop().time()
    await pieces.whole(PATIENCE)
    return asyncio.get_running_loop().time() - began


def stand_still(seconds: float) -> None:
    """As a process that does not get a processor."""
    time.sleep(seconds)


def test_a_write_that_is_no_first_piece_is_not_waited_for() -> None:
    async def play() -> None:
        pieces = Pieces()
        assert await waited(pieces) == 0
        for offset, size in ((0, 10), (0, PAGE), (PAGE, 3 * PAGE), (10, PAGE), (5, 6)):
            pieces.came(offset, size)
            assert await waited(pieces) == 0

    VirtualLoop(0).run(play())


def test_a_first_piece_is_waited_for_until_the_next_comes_or_time_is_over() -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        pieces = Pieces()
        for end in (lambda: pieces.came(PAGE, 7), pieces.end):
            pieces.came(100, PAGE - 100)
            loop.call_later(PATIENCE / 2, end)
            assert await waited(pieces) == pytest.approx(PATIENCE / 2)
        pieces.came(100, PAGE - 100)
        assert await waited(pieces) == pytest.approx(PATIENCE)
        assert await waited(pieces) == 0

    VirtualLoop(0).run(play())


def test_the_next_write_waits_until_who_waited_has_gone_on() -> None:
    """What was whole at one moment is taken, however quickly pieces follow each other."""

    async def play() -> None:
        pieces = Pieces()
        order: list[str] = []

        async def write() -> None:
            for _ in range(3):
                await pieces.next()
                order.append("first piece")
                pieces.came(100, PAGE - 100)
                pieces.came(PAGE, 7)
                order.append("rest")

        async def take() -> None:
            await pieces.whole(PATIENCE)
            assert not pieces.pending
            order.append("taken")

        pieces.came(100, PAGE - 100)
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
        pieces = Pieces()
        for end in (lambda: pieces.came(PAGE, 7), pieces.end):
            pieces.came(100, PAGE - 100)
            loop.call_later(PATIENCE / 2, pieces.arrives)
            loop.call_later(10, end)
            assert await waited(pieces) == pytest.approx(10)
        pieces.came(100, PAGE - 100)
        assert await waited(pieces) == pytest.approx(PATIENCE), "that was another rest"
        pieces.came(100, PAGE - 100)
        pieces.arrives()
        assert await waited(pieces) == pytest.approx(HERE_WAIT, abs=2 * PATIENCE), "D3"

    VirtualLoop(0).run(play())


async def test_what_is_awaited_is_the_continuation() -> None:
    pieces = Pieces()
    assert not pieces.awaits(0)
    pieces.came(100, PAGE - 100)
    assert pieces.awaits(PAGE)
    assert not pieces.awaits(100)
    pieces.came(PAGE, 1)
    assert not pieces.awaits(PAGE + 1)


async def test_a_rest_that_came_while_the_process_stood_still_is_not_passed_over() -> None:
    pieces = Pieces()
    reader, writer = os.pipe()
    taken = asyncio.Event()

    async def take() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        pieces.came(PAGE, 7)
        taken.set()

    def readable() -> None:
        os.read(reader, 1)
        tasks.append(asyncio.create_task(take()))

    tasks: list[asyncio.Task[None]] = []
    try:
        asyncio.get_running_loop().add_reader(reader, readable)
        pieces.came(100, PAGE - 100)
        waiting = asyncio.create_task(pieces.whole(PATIENCE))
        await asyncio.sleep(0)
        os.write(writer, b"x")
        stand_still(2 * PATIENCE)
        await waiting
        assert taken.is_set()
    finally:
        asyncio.get_running_loop().remove_reader(reader)
        os.close(reader)
        os.close(writer)
