"""The bytes of results that are in the making for one owner are bounded, and all come back."""

from __future__ import annotations

import asyncio
import random

import pytest

from boxd.boxes.limits.budgets.results import SMALL, Budget, Budgets, Share
from boxd.mcp.library.unsent_results import UnsentResults


async def _turns() -> None:
    """What is ready to go on goes on."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_it_is_never_exceeded_and_all_get_their_turn() -> None:
    budget, numbers = Budget(100), random.Random(7)
    in_flight = most = 0

    async def call(size: int, turns: int, *, cancelled: bool) -> None:
        nonlocal in_flight, most
        task = asyncio.current_task()
        if cancelled and task is not None:
            asyncio.get_running_loop().call_soon(task.cancel)
        taken = await budget.take(size)
        in_flight += taken
        most = max(most, in_flight)
        try:
            for _ in range(turns):
                await asyncio.sleep(0)
        finally:
            in_flight -= taken
            budget.give(taken)

    sizes = [(numbers.randint(1, 150), numbers.randint(0, 5)) for _ in range(500)]
    calls = [call(*one, cancelled=numbers.random() < 0.3) for one in sizes]
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert any(one is None for one in ended)
    assert any(isinstance(one, asyncio.CancelledError) for one in ended)
    assert 50 < most <= 100
    assert (in_flight, budget.taken) == (0, 0)


async def test_who_waits_goes_on_in_order() -> None:
    budget, order = Budget(10), list[str]()

    async def call(name: str, size: int) -> None:
        await budget.take(size)
        order.append(name)

    await budget.take(6)
    waiting = [asyncio.create_task(call("first", 8)), asyncio.create_task(call("second", 1))]
    await _turns()
    assert order == []
    budget.give(6)
    await asyncio.gather(*waiting)
    assert (order, budget.taken) == (["first", "second"], 9)


async def test_one_that_is_larger_takes_it_alone() -> None:
    budget = Budget(10)
    await budget.take(1)
    large = asyncio.create_task(budget.take(1000))
    await _turns()
    assert not large.done()
    budget.give(1)
    assert await large == 10
    other = asyncio.create_task(budget.take(1))
    await _turns()
    assert not other.done()
    budget.give(10)
    await other


async def test_a_waiter_that_is_cancelled_frees_its_place() -> None:
    budget = Budget(10)
    await budget.take(5)
    large, small = asyncio.create_task(budget.take(10)), asyncio.create_task(budget.take(5))
    await _turns()
    assert not small.done()
    large.cancel()
    with pytest.raises(asyncio.CancelledError):
        await large
    assert await small == 5


async def test_what_comes_with_the_cancellation_is_given_back() -> None:
    budget = Budget(10)
    await budget.take(10)
    waiting = [asyncio.create_task(budget.take(10)) for _ in range(2)]
    await _turns()
    budget.give(10)
    waiting[0].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert waiting[0].cancelled()
    assert (waiting[1].result(), budget.taken) == (10, 10)


async def test_small_ones_pass_by() -> None:
    budget = Budget(SMALL + 1)
    large = Share(budget)
    await large.take(SMALL + 1)
    waiting = asyncio.create_task(Share(budget).take(SMALL + 1))
    await Share(budget).take(SMALL)
    assert not waiting.done()
    large.release()
    large.release()
    await waiting
    assert budget.taken == SMALL + 1


async def test_the_end_of_a_connection_releases_all() -> None:
    budget = Budget(10 * SMALL)
    shares = [Share(budget) for _ in range(4)]
    for share in shares:
        await share.take(2 * SMALL)
    with UnsentResults() as unsent:
        unsent.keep(1, shares[0])
        unsent.keep(2, shares[1])
        unsent.release(1)
        unsent.release(1)
        assert budget.taken == 6 * SMALL
        unsent.keep(2, shares[2])
        assert budget.taken == 4 * SMALL
    assert budget.taken == 2 * SMALL
    unsent.keep(3, shares[3])
    assert budget.taken == 0


def test_an_owner_has_one() -> None:
    budgets = Budgets()
    one, other = budgets.of("a"), budgets.of("b")
    assert budgets.of("a") is one
    assert one is not other
