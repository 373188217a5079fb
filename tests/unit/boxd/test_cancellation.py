"""Steps side by side, and work that is waited for: what fails, and what is cancelled."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from boxd.cancellation import ended, together
from boxd.errors import Unavailable


async def failing(text: str) -> None:
    """Fails after a moment."""
    await asyncio.sleep(0)
    raise Unavailable(text)


async def test_of_steps_that_fail_the_first_is_told_and_no_other_is_forgotten() -> None:
    forgotten: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: forgotten.append(context))
    with pytest.raises(Unavailable, match="one"):
        await together(failing("one"), failing("two"))
    gc.collect()
    await asyncio.sleep(0)
    assert forgotten == []


async def test_a_cancellation_goes_on_when_all_steps_have_ended() -> None:
    over = []

    async def slow(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            over.append(number)

    task = asyncio.create_task(together(slow(1), slow(2)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert over == [1, 2]


async def test_who_waits_for_what_goes_on_waits_to_its_end() -> None:
    """However often it is cancelled."""
    begun, end = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        begun.set()
        await end.wait()
        return "done"

    inner = asyncio.create_task(work())
    outer = asyncio.create_task(ended(inner))
    await begun.wait()
    for _ in range(3):
        outer.cancel()
        await asyncio.sleep(0)
    assert not outer.done()
    end.set()
    with pytest.raises(asyncio.CancelledError):
        await outer
    assert inner.result() == "done"
    assert await ended(inner) == "done"
