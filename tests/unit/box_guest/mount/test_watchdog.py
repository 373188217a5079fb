"""Requests that take too long are ended, the others are not touched."""

from __future__ import annotations

import asyncio

import pytest

from box_guest.mount.watchdog import Watchdog


async def test_a_late_request_is_cancelled_and_its_task_goes_on() -> None:
    watchdog = Watchdog(timeout=0.0)
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
    watchdog = Watchdog(timeout=60.0)
    task = watchdog.enter()
    await asyncio.sleep(0)
    watchdog.leave(task)
    assert not watchdog.was_late(task)
    watchdog.close()


def test_outside_of_a_task_there_is_no_request() -> None:
    with pytest.raises(RuntimeError):
        Watchdog(1.0).enter()
