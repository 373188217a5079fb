"""Boxes that only their own SSH server opens: how they are made, and who may attach."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.lifecycle.holds import AttachRequest
from boxd.boxes.state.requests import BoxAccess, BoxRequest
from boxd.errors import Confidential, Conflict
from boxd.model.box import BoxState
from tests.harness.simulation.world import ALICE
from tests.unit.boxd.boxes.life import OWNER, RELAY_KEY, relayed, rows, spec, up

if TYPE_CHECKING:
    from boxd.model.box import Box
    from tests.harness.simulation.world import World
    from tests.plugins.strict_logs import AssertLogs

WAY = "ssh -J jump@HOST root@web"


def told(world: World, box: Box) -> dict[str, object]:
    """What the box's agent is told."""
    path = world.root / "boxes" / box.id / "run" / "config.json"
    found: dict[str, object] = json.loads(path.read_text())
    return found


async def test_what_the_relay_makes_is_confidential_and_takes_its_key(world: World) -> None:
    box = await relayed(world)
    assert (box.confidential, box.relay_key) == (True, RELAY_KEY)
    assert told(world, box)["relay_key"] == RELAY_KEY
    usual = await up(world, "usual")
    assert (usual.confidential, usual.relay_key) == (False, "")
    assert "relay_key" not in told(world, usual)


async def test_nobody_else_attaches_or_even_wakes_it(world: World) -> None:
    box = await relayed(world)
    await world.lifecycle.close(stop_boxes=True)
    await world.crash()
    (asleep,) = await rows(world)
    assert asleep.state is BoxState.SUSPENDED
    for _ in range(2):
        with pytest.raises(Confidential, match=WAY):
            async with world.lifecycle.attach(
                AttachRequest(
                    BoxRequest(OWNER, None, spec("web:debian+5m")), why="shell", key_id=None
                )
            ):
                pass
        with pytest.raises(Confidential, match=WAY):
            async with world.lifecycle.attach(AttachRequest(asleep, why="exec", key_id=None)):
                pass
        (now,) = await rows(world)
        assert (now.state, now.grace) == (asleep.state, asleep.grace)
        assert world.lifecycle.attachments.count(box.id) == 0
    assert Confidential.http_status == 403
    # By the relay, and by who does not look into it.
    assert (await relayed(world, "web+5m")).grace == timedelta(minutes=5)
    assert (await up(world)).id == box.id


async def test_operations_know_both_ways(world: World) -> None:
    async with world.operations.boxes.attach(
        ALICE, BoxAccess("web", kind="spec", why="relay", relay=RELAY_KEY)
    ) as held:
        box = held.box
    for kind in ("spec", "reference"):
        with pytest.raises(Confidential):
            async with world.operations.boxes.attach(
                ALICE, BoxAccess("web", kind=kind, why="shell")
            ):
                pass
    async with world.operations.boxes.attach(
        ALICE, BoxAccess(box.id[:8], kind="reference", why="relay", relay=RELAY_KEY)
    ) as held:
        assert held.box.id == box.id
    assert (await world.operations.boxes.inspect(ALICE, "web")).to_json()["confidential"] is True


async def test_a_usual_box_stays_one(world: World) -> None:
    box = await up(world)
    with pytest.raises(Conflict, match="box web is not confidential; use a new name"):
        await relayed(world)
    with pytest.raises(Conflict, match="not confidential"):
        async with world.lifecycle.attach(
            AttachRequest(box, why="relay", key_id=None, relay_key=RELAY_KEY)
        ):
            pass
    assert not (await up(world)).confidential


async def test_a_fresh_box_is_of_the_kind_that_is_asked_for(world: World) -> None:
    usual = await up(world)
    hidden = await relayed(world, "web+")
    assert hidden.id != usual.id
    assert hidden.confidential
    open_again = await up(world, "web+")
    assert not open_again.confidential
    assert "relay_key" not in told(world, open_again)


async def test_a_box_that_was_not_finished_is_made_anew_as_it_is_asked_for(world: World) -> None:
    box = await relayed(world)
    await world.store.remove_box(box.id)
    await world.store.add_box(box)
    again = await relayed(world)
    assert again.relay_key == RELAY_KEY


async def test_what_is_lost_comes_back_confidential(world: World, assert_logs: AssertLogs) -> None:
    box = await relayed(world)
    await world.lifecycle.close(stop_boxes=True)
    await world.crash()
    await world.backend.destroy(box.id)
    shutil.rmtree(world.root / "boxes" / box.id)
    with assert_logs("the disk of the box was lost"):
        again = await relayed(world)
    assert again.id == box.id
    assert told(world, again)["relay_key"] == RELAY_KEY
