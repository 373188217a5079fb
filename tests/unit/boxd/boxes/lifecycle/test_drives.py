"""/wrk in running boxes on fakes: requests of agents, and new mounts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from boxd.errors import BadRequest, Conflict, NotFound
from tests.harness.simulation.world import Failure, World
from tests.unit.boxd.boxes.life import OWNER, rows, up

if TYPE_CHECKING:
    from pathlib import Path


async def test_workspace_requests_of_the_agent(tmp_path: Path) -> None:
    world = World(tmp_path, automount=False)
    await world.start()
    try:
        box = await up(world)

        async def request(box_id: str, verb: str) -> dict[str, object]:
            return await world.lifecycle.request(box_id, "workspace", {"verb": verb})

        assert await request(box.id, "info") == {"mounted": False}
        assert await request(box.id, "mount") == {"mounted": True}
        assert (await rows(world))[0].drive
        world.drives.holders[box.id] = "bash (12)"
        with pytest.raises(Conflict, match="bash"):
            await request(box.id, "umount")
        assert (await rows(world))[0].drive
        world.drives.holders.clear()
        assert await request(box.id, "umount") == {"mounted": False}
        assert not (await rows(world))[0].drive
        with pytest.raises(BadRequest, match="mount, umount or info"):
            await request(box.id, "format")
        with pytest.raises(NotFound):
            await request("0" * 32, "info")
    finally:
        await world.close()


async def test_new_mount_comes_into_the_boxes_of_its_volume(world: World) -> None:
    mine, other = await up(world, "web"), await up(world, "ws1/web")
    world.drives.attached.clear()
    await world.lifecycle.reattach(OWNER, None)
    assert world.drives.attached == {mine.id}
    await world.lifecycle.reattach(OWNER, "ws1")
    assert world.drives.attached == {mine.id, other.id}


async def test_mount_that_fails_is_not_recorded(tmp_path: Path) -> None:
    world = World(tmp_path, automount=False)
    await world.start()
    try:
        box = await up(world)
        world.fail_at("drive.attach")
        with pytest.raises(Failure):
            await world.lifecycle.request(box.id, "workspace", {"verb": "mount"})
        assert [box.drive for box in await rows(world)] == [False]
    finally:
        await world.close()
