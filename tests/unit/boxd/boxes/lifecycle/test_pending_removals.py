"""What is removed at once is removed at once, whatever is being done with the box."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.lifecycle.pending_removals import BeingRemoved, PendingRemovals
from boxd.errors import NotFound
from boxd.model.box import BoxState
from tests.harness.simulation.world import World
from tests.harness.wait import until
from tests.unit.boxd.boxes.life import rows, up

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.model.box import Box

HOUR = timedelta(hours=1)


@pytest.fixture
async def hanging(tmp_path: Path) -> World:
    """A core whose boxes can be suspended, with a box that has a deadline."""
    made = World(tmp_path, suspends=True)
    await made.start()
    await up(made, "web^1h")
    return made


async def _end(world: World, how: str) -> None:
    """The deadline passes, or somebody removes the box; the time is bounded by nothing else."""
    if how == "deadline":
        await world.tick(HOUR)
    else:
        await world.lifecycle.remove((await rows(world))[0])


@pytest.mark.parametrize("how", ["deadline", "rm"])
@pytest.mark.parametrize("step", ["tunnel.hello", "backend.resume", "drive.prepare"])
async def test_a_box_that_does_not_come_up_is_removed(hanging: World, step: str, how: str) -> None:
    [box] = await rows(hanging)
    await hanging.lifecycle.suspend(box)
    hanging.steps.held[step] = asyncio.Event()
    hanging.steps.done.clear()
    waiting = [asyncio.create_task(hanging.lifecycle.wake(box)) for _ in range(3)]
    waiting.append(asyncio.create_task(up(hanging, "web")))
    await until(lambda: step in hanging.steps.done)
    await _end(hanging, how)
    for task in waiting:
        with pytest.raises(NotFound, match="box web was removed"):
            await task
    assert await hanging.left_overs() == {}
    hanging.steps.held.clear()
    assert (await up(hanging, "web")).id != box.id
    await hanging.close()


@pytest.mark.parametrize("how", ["deadline", "rm"])
@pytest.mark.parametrize("step", ["backend.create", "backend.start", "tunnel.hello"])
async def test_a_box_that_is_being_made_is_removed(tmp_path: Path, step: str, how: str) -> None:
    world = World(tmp_path)
    await world.start()
    world.steps.held[step] = asyncio.Event()
    making = asyncio.create_task(up(world, "web^1h"))
    await until(lambda: step in world.steps.done)
    await _end(world, how)
    with pytest.raises(NotFound, match="box web was removed"):
        await making
    assert await world.left_overs() == {}
    await world.close()


@pytest.mark.parametrize("how", ["deadline", "rm"])
@pytest.mark.parametrize("act", ["suspend", "unused", "snapshot"])
async def test_a_memory_that_is_being_written_is_given_up(
    hanging: World, act: str, how: str
) -> None:
    [box] = await rows(hanging)
    step = "backend.snapshot" if act == "snapshot" else "backend.save_memory"
    hanging.steps.held[step] = asyncio.Event()
    work: asyncio.Task[object] | None = None
    if act == "unused":
        hanging.clock.turn(timedelta(minutes=3))
        hanging.lifecycle._timers.look()
    elif act == "suspend":
        work = asyncio.create_task(hanging.lifecycle.suspend(box))
    else:
        work = asyncio.create_task(hanging.lifecycle.snapshot(box, None))
    await until(lambda: step in hanging.steps.done)
    await _end(hanging, how)
    if work is not None:
        with pytest.raises(NotFound, match="box web was removed"):
            await work
    await hanging.lifecycle._timers.idle()
    assert await hanging.left_overs() == {}
    await hanging.close()


async def test_a_removal_that_fails_removals_no_longer(hanging: World) -> None:
    [box] = await rows(hanging)

    async def away(box_id: str) -> None:
        del box_id
        raise OSError("away")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hanging.store, "remove_box", away)
        with pytest.raises(OSError, match="away"):
            await hanging.lifecycle.remove(box)
    assert (await hanging.lifecycle.suspend(box)).state is BoxState.SUSPENDED
    await hanging.close()


async def test_only_what_is_done_with_that_box_is_broken_off(hanging: World) -> None:
    removals, ended = PendingRemovals(), []
    [web] = await rows(hanging)
    other = await up(hanging, "other")

    async def wait(box: Box, until_set: asyncio.Event) -> None:
        async with removals.abortable(box):
            await until_set.wait()
        ended.append(box.name)

    go = asyncio.Event()
    mine, its = (asyncio.create_task(wait(box, go)) for box in (web, other))
    await asyncio.sleep(0)
    with removals.announce(web), removals.announce(web):
        with pytest.raises(BeingRemoved):
            await mine
        with pytest.raises(BeingRemoved):
            await wait(web, go)
    go.set()
    await its
    await wait(web, go)
    assert ended == ["other", "web"]
    with pytest.raises(TimeoutError):
        async with removals.abortable(web):
            raise TimeoutError
    await hanging.close()
