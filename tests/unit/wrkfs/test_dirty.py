"""The bound on dirty memory."""

from __future__ import annotations

import asyncio

from wrkfs.dirty import DirtyBudget


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
