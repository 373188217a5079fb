"""Workspaces made at their first use."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from boxd.errors import Forbidden, QuotaExceeded, UnknownImage
from tests.harness.simulation.world import ALICE, SCOPED, World

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.operations import Operations


async def test_scoped_key_makes_no_workspace(world: World, ops: Operations) -> None:
    with pytest.raises(Forbidden, match="create a workspace"):
        await ops.boxes.up(SCOPED, "web")
    assert await world.store.workspaces(ALICE.owner) == []
    assert await world.left_overs() == {}


async def test_a_refused_box_makes_no_workspace(world: World, ops: Operations) -> None:
    with pytest.raises(UnknownImage):
        await ops.boxes.up(ALICE, "ws9/web:nope")
    assert await world.store.workspaces(ALICE.owner) == []
    await ops.boxes.up(ALICE, "ws9/web")
    assert await world.store.workspaces(ALICE.owner) == ["ws9"]


async def test_boxes_make_no_workspace_beyond_the_limit(tmp_path: Path) -> None:
    world = World(tmp_path, tier=lambda tier: replace(tier, workspaces=1))
    await world.start()
    try:
        await world.operations.boxes.up(ALICE, "ws1/web")
        with pytest.raises(QuotaExceeded, match="1 workspaces per owner"):
            await world.operations.boxes.up(ALICE, "ws2/web")
        await world.operations.boxes.up(ALICE, "ws1/other")
        assert await world.store.workspaces(ALICE.owner) == ["ws1"]
    finally:
        await world.close()
