"""What was opened for somebody who has gone is closed again."""

from __future__ import annotations

import asyncio

import pytest

from boxd.tunnel.opening import opened


async def test_it_is_given_to_who_waits() -> None:
    discarded: list[str] = []

    async def opening() -> str:
        return "channel"

    assert await opened(opening(), discarded.append) == "channel"
    assert not discarded


async def test_its_error_is_told_to_who_waits() -> None:
    async def opening() -> str:
        raise OSError("refused")

    with pytest.raises(OSError, match="refused"):
        await opened(opening(), print)


@pytest.mark.parametrize("late", [True, False], ids=["opened", "refused"])
async def test_who_is_cancelled_has_nothing_and_what_comes_late_is_discarded(late: bool) -> None:
    discarded: list[str] = []
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(opened(answer, discarded.append))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not answer.done(), "it is not broken off: the other side has been asked"
    if late:
        answer.set_result("channel")
    else:
        answer.set_exception(OSError("refused"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert discarded == ["channel"] * late


async def test_who_is_cancelled_when_it_was_just_opened_has_nothing_either() -> None:
    discarded: list[str] = []
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(opened(answer, discarded.append))
    await asyncio.sleep(0)
    answer.set_result("channel")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.sleep(0)
    assert discarded == ["channel"]
