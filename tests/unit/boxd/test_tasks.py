"""Background tasks: their owner ends them, and a failure is logged at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from boxd.tasks import BackgroundTasks
from tests.harness.logs import provoked

if TYPE_CHECKING:
    from collections.abc import Callable


async def _fail() -> None:
    raise ValueError("broken")


async def test_close_cancels_and_waits() -> None:
    tasks, cleaned = BackgroundTasks(), []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    started = [tasks.start(work(), name=name) for name in ("one", "two")]
    await asyncio.sleep(0)
    assert len(tasks) == 2
    assert {task.get_name() for task in tasks} == {"one", "two"}
    await tasks.close()
    assert cleaned == [True, True]
    assert all(task.cancelled() for task in started)
    assert len(tasks) == 0
    await tasks.close()


async def test_join_waits_for_later_tasks_too() -> None:
    tasks, ended = BackgroundTasks(), []

    async def work(left: int) -> None:
        await asyncio.sleep(0)
        ended.append(left)
        if left:
            tasks.start(work(left - 1), name="next")

    tasks.start(work(2), name="first")
    await tasks.join()
    assert ended == [2, 1, 0]


async def test_a_failure_is_logged_at_once() -> None:
    tasks = BackgroundTasks()
    with provoked("boxd.tasks") as lines:
        tasks.start(_fail(), name="upkeep")
        await tasks.join()
    (line,) = lines
    assert "upkeep: the task failed because of a bug; restart the service" in line
    assert "ValueError: broken" in line


async def test_a_failure_of_an_awaited_task_goes_to_its_starter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = BackgroundTasks()
    with pytest.raises(ValueError, match="broken"):
        await tasks.start(_fail(), name="request", awaited=True)
    assert not caplog.records


@pytest.mark.parametrize("end", [BackgroundTasks.cancel, BackgroundTasks.close])
async def test_a_cancelled_task_is_no_failure(
    end: Callable[[BackgroundTasks], object], caplog: pytest.LogCaptureFixture
) -> None:
    tasks = BackgroundTasks()
    tasks.start(asyncio.sleep(60), name="sleeper")
    ending = end(tasks)
    if asyncio.iscoroutine(ending):
        await ending
    await tasks.join()
    assert not caplog.records
