"""A spec means the same by every verb that makes boxes, forks included: the stored rows are equal.

The same over real SSH and HTTP stands in tests/integration/test_creation_doors.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.state.requests import BoxAccess
from boxd.model.progress import Progress
from tests.harness.simulation.world import ALICE

if TYPE_CHECKING:
    from boxd.model.box import Box
    from tests.harness.simulation.world import World

SPECS = ("child", "child+", "child^90m", "child+10m", "ws1/child^2h+5m", "child+^9000h+1h")


def compared(box: Box) -> Box:
    """The row without what differs between any two boxes."""
    return replace(box, id="", created=box.since, host_key="", memory=False)


def base_of(spec: str) -> str:
    """A box of the same workspace: forks go on from its memory."""
    return "".join(spec.rpartition("/")[:2]) + "base"


async def made(world: World, verb: str, spec: str) -> tuple[Box, list[str]]:
    """The row of the box that a verb makes of a spec, and what was noted; the box is removed."""
    notes: list[str] = []
    ops = world.operations
    if verb == "up":
        await ops.boxes.up(ALICE, spec, progress=Progress(notes.append))
    elif verb == "fork":
        await ops.snapshots.fork(ALICE, base_of(spec), spec, progress=Progress(notes.append))
    else:
        run = verb == "exec"
        async with ops.boxes.attach(
            ALICE, BoxAccess(spec, kind="spec", why=verb, run_box=run), Progress(notes.append)
        ):
            pass
    [box] = [box for box in await world.store.boxes(ALICE.owner) if box.name == "child"]
    await ops.boxes.remove(ALICE, box.id)
    return box, notes


@pytest.mark.parametrize("spec", SPECS)
async def test_the_rows_of_all_verbs_are_equal(sleepy: World, spec: str) -> None:
    await sleepy.operations.boxes.up(ALICE, f"{base_of(spec)}:debian:small")
    row, notes = await made(sleepy, "up", spec)
    for verb in ("shell", "exec", "fork"):
        other, told = await made(sleepy, verb, spec)
        if verb == "exec" and row.deadline is None:
            assert other.deadline == sleepy.clock.now() + sleepy.tier.deadline_exec
            other = replace(other, deadline=None)
        assert compared(other) == replace(compared(row), idle_since=other.idle_since), verb
        assert told == notes, verb
