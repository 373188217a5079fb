"""Few boxes stand still at the same time, and one whose turn has not come is in nobody's hands."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.state.locks import STANDSTILLS_PER_CPU
from boxd.model.box import BoxState
from tests.harness.simulation.world import World
from tests.harness.wait import until
from tests.unit.boxd.boxes.life import rows, up

if TYPE_CHECKING:
    from pathlib import Path

MOST = STANDSTILLS_PER_CPU * len(os.sched_getaffinity(0))


@pytest.mark.parametrize("how", ["unused", "suspend", "snapshot"])
async def test_few_boxes_stand_still_at_once(tmp_path: Path, how: str) -> None:
    world = World(tmp_path, suspends=True)
    await world.start()
    boxes = [await up(world, f"box{n}") for n in range(MOST + 3)]
    world.steps.held["backend.freeze"] = gate = asyncio.Event()
    world.steps.done.clear()
    work: list[asyncio.Task[object]] = []
    if how == "unused":
        world.clock.turn(timedelta(minutes=3))
        world.lifecycle._timers.look()
    elif how == "suspend":
        work = [asyncio.create_task(world.lifecycle.suspend(box)) for box in boxes]
    else:
        work = [asyncio.create_task(world.lifecycle.snapshot(box, None)) for box in boxes]
    await until(lambda: world.steps.done.count("backend.freeze") == MOST)
    for _ in range(100):
        await asyncio.sleep(0)
    assert world.steps.done.count("backend.freeze") == MOST
    assert (await up(world, boxes[-1].name)).state is BoxState.RUNNING
    await world.lifecycle.remove(boxes[-2])
    gate.set()
    await asyncio.gather(*work, return_exceptions=True)
    await world.lifecycle._timers.idle()
    if how != "snapshot":
        assert {box.state for box in await rows(world)} == {BoxState.SUSPENDED}
    assert len(await rows(world)) == len(boxes) - 1
    await world.close()
