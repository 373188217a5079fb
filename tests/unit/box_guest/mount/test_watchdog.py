"""Requests that take too long are ended, the others are not touched; idleness is told once."""

from __future__ import annotations

import asyncio

import pytest

from box_guest.mount import watchdog as watching
from box_guest.mount.watchdog import Watchdog


def never() -> None:
    """Called although there are requests."""
    raise AssertionError


async def test_a_late_request_is_cancelled_and_its_task_goes_on() -> None:
    watchdog = Watchdog(0.0, never)
    late = False
    task = watchdog.enter()
    try:
        async with asyncio.timeout(30):
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        late = watchdog.was_late(task)
    finally:
        watchdog.leave(task)
    assert late
    assert task.cancelling() == 0, "the task serves the next request"
    await asyncio.sleep(0)
    watchdog.close()


async def test_a_request_in_time_is_left_alone() -> None:
    watchdog = Watchdog(60.0, never)
    task = watchdog.enter()
    await asyncio.sleep(0)
    watchdog.leave(task)
    assert not watchdog.was_late(task)
    watchdog.close()


async def test_idleness_is_told_once_after_the_last_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "INTERVAL", 0.001)
    told: list[bool] = []
    at_work = False
    idle = asyncio.Event()

    def on_idle() -> None:
        told.append(at_work)
        idle.set()

    watchdog = Watchdog(60.0, on_idle)
    for count in (1, 2):
        idle.clear()
        task = watchdog.enter()
        at_work = True
        await asyncio.sleep(0.02)
        at_work = False
        watchdog.leave(task)
        await idle.wait()
        await asyncio.sleep(0.02)
        assert told == [False] * count
    watchdog.close()


def test_outside_of_a_task_there_is_no_request() -> None:
    with pytest.raises(RuntimeError):
        Watchdog(1.0, never).enter()
