"""Requests that take too long are ended, the others are not touched; idleness is told once."""

from __future__ import annotations

import asyncio

import pytest

from box_guest.mount.watchdog import INTERVAL, Watchdog
from tests.harness.simulation.virtual_loop import VirtualLoop


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


def test_idleness_is_told_once_after_the_last_request() -> None:
    told = 0

    def on_idle() -> None:
        nonlocal told
        told += 1

    async def two_requests() -> None:
        watchdog = Watchdog(60.0, on_idle)
        for count in (1, 2):
            task = watchdog.enter()
            await asyncio.sleep(10.5 * INTERVAL)
            assert told == count - 1, "there is a request"
            watchdog.leave(task)
            await asyncio.sleep(10 * INTERVAL)
            assert told == count
        watchdog.close()

    VirtualLoop(0).run(two_requests())


def test_outside_of_a_task_there_is_no_request() -> None:
    with pytest.raises(RuntimeError):
        Watchdog(1.0, never).enter()
