"""Processes that are waited for, by who may be called off at any moment."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest
import uvloop

from boxd.embedded.process import Process, Supervisor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


def spawned(folder: Path) -> Process:
    """One that lives until it is ended."""
    return Process.spawn(["sleep", "600"], log=folder / "log")


async def turns(count: int) -> None:
    """The event loop goes on by so many steps."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[Process]:
    """One that is ended at last."""
    made = spawned(tmp_path)
    exited = made._exited
    yield made
    made._exited = exited
    await made.end(((signal.SIGKILL, 30.0),))
    made.close()


@pytest.mark.parametrize("late", range(5))
async def test_a_cancellation_that_meets_the_end_is_not_forgotten(
    process: Process, late: int
) -> None:
    process._exited = told = asyncio.Event()
    waiting = asyncio.create_task(process.wait(60))
    await turns(3)
    told.set()
    await turns(late)
    if waiting.cancel():
        with pytest.raises(asyncio.CancelledError):
            await waiting
    else:
        assert await waiting


async def waited_for_to_the_last(folder: Path, *, told: bool) -> bool:
    """What a wait says when the end of the process and that of the patience come in one turn."""
    process = spawned(folder)

    def end() -> None:
        process.signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        if told:
            process._ended()

    asyncio.get_running_loop().call_soon(end)
    try:
        found = await process.wait(0)
        assert process.alive is not found
        return found
    finally:
        await process.end(((signal.SIGKILL, 30.0),))
        process.close()


@pytest.mark.parametrize("told", [True, False], ids=["told first", "late first"])
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_who_has_ended_by_the_end_of_the_patience_does_not_live(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop], *, told: bool
) -> None:
    """A loop that stood still learns of both at once, and in either order."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(waited_for_to_the_last(tmp_path, told=told))


@pytest.mark.parametrize("late", range(8))
async def test_who_is_no_longer_watched_is_not_started_again(tmp_path: Path, late: int) -> None:
    """Also if it ended while it was being started, just then."""
    ended = asyncio.Event()

    async def start() -> Process:
        process = spawned(tmp_path)
        process.signal(signal.SIGKILL)
        mark: Callable[[], None] = process._ended

        def mark_and_tell() -> None:
            mark()
            ended.set()

        process._loop.add_reader(process._fd, mark_and_tell)
        try:
            if await process.wait(60):
                raise OSError("it ended")
        finally:
            process.close()
        return process

    supervisor = Supervisor("it", start, lambda _: None)
    supervisor.watch(spawned(tmp_path))
    assert supervisor.process is not None
    supervisor.process.signal(signal.SIGKILL)
    await ended.wait()
    await turns(late)
    async with asyncio.timeout(30):
        assert await supervisor.release() is None
