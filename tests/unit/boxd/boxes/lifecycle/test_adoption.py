"""What a new daemon makes of what an earlier one left: every row state times the host's state."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.backends.interface import BoxPlan
from boxd.boxes.lifecycle.adoption import ADOPTED_PAUSE, STOPPED
from boxd.boxes.lifecycle.holds import AttachRequest
from boxd.boxes.lifecycle.suspend import DIED
from boxd.boxes.state.requests import BoxRequest
from boxd.boxes.timing.policy import Policy
from boxd.boxes.timing.timers import RETRY
from boxd.errors import Unavailable
from boxd.model.box import BoxState
from boxd.model.presence import Presence
from boxd.names.spec import parse_spec
from tests.harness.service.mortal import Died
from tests.harness.simulation.world import ALICE, World

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.model.box import Box
    from tests.plugins.strict_logs import AssertLogs


async def _box(world: World, text: str = "web") -> Box:
    return await world.lifecycle.up(BoxRequest(ALICE.owner, None, parse_spec(text)))


async def _rewrite(world: World, box: Box, state: BoxState) -> None:
    """A row as a crash may have left it."""
    await world.store.remove_box(box.id)
    await world.store.add_box(replace(box, state=state, detail="before"))


@pytest.mark.parametrize(
    ("state", "running", "expected", "lives"),
    [
        (BoxState.CREATING, True, None, False),
        (BoxState.CREATING, False, None, False),
        (BoxState.RUNNING, True, BoxState.RUNNING, True),
        (BoxState.RUNNING, False, BoxState.SUSPENDED, False),
        (BoxState.SUSPENDING, True, BoxState.RUNNING, True),
        (BoxState.SUSPENDING, False, BoxState.SUSPENDED, False),
        (BoxState.SUSPENDED, True, BoxState.SUSPENDED, False),
        (BoxState.SUSPENDED, False, BoxState.SUSPENDED, False),
        (BoxState.RESUMING, True, BoxState.RUNNING, True),
        (BoxState.RESUMING, False, BoxState.SUSPENDED, False),
        (BoxState.FAILED, True, BoxState.FAILED, False),
        (BoxState.FAILED, False, BoxState.FAILED, False),
    ],
)
async def test_adoption(
    world: World, state: BoxState, *, running: bool, expected: BoxState | None, lives: bool
) -> None:
    box = await _box(world)
    if not running:
        await world.backend.stop(box.id)
    await _rewrite(world, box, state)
    await world.restart()
    stored = await world.store.box(box.id)
    if expected is None:
        assert stored is None
        assert await world.left_overs() == {}
        return
    assert stored is not None
    assert stored.state is expected
    assert await world.backend.lives(box.id) is lives
    assert world.tunnels.open_for == ({box.id} if lives else set())
    assert world.drives.attached == ({box.id} if lives else set())
    if expected is BoxState.SUSPENDED and state is not BoxState.SUSPENDED:
        assert stored.detail == DIED
    assert (await _box(world)).state is BoxState.RUNNING


async def test_unknown_box_of_the_backend_is_destroyed(world: World, tmp_path: Path) -> None:
    box_id = "e" * 32
    plan = BoxPlan(
        box_id, "h", "i", tmp_path, tmp_path, world.root / "boxes" / box_id / "run", 1, 1, 1, "all"
    )
    plan.run_dir.mkdir(parents=True)
    await world.backend.create(plan)
    await world.restart()
    assert await world.left_overs() == {}


async def test_deadline_that_passed_meanwhile_removes(world: World) -> None:
    await _box(world, "web^1h")
    kept = await _box(world, "other^3h")
    await world.close()
    world.clock.turn(timedelta(hours=2))
    await world.restart()
    assert [box.id for box in await world.store.all_boxes()] == [kept.id]


async def test_throwaway_boxes_do_not_outlive_their_daemon(world: World) -> None:
    await world.lifecycle.up(BoxRequest(ALICE.owner, None, parse_spec("_", allow_anonymous=True)))
    await world.restart()
    assert await world.left_overs() == {}


async def test_stop_of_everything_keeps_boxes_on_disk(world: World) -> None:
    boxes = await asyncio.gather(*(_box(world, f"box{n}") for n in range(6)))
    await world.lifecycle.up(BoxRequest(ALICE.owner, None, parse_spec("_", allow_anonymous=True)))
    await world.close(stop_boxes=True)
    stored = await world.store.all_boxes()
    assert {box.id for box in stored} == {box.id for box in boxes}
    assert {(box.state, box.detail) for box in stored} == {(BoxState.SUSPENDED, STOPPED)}
    assert not any(one.running for one in await world.backend.list())
    await world.restart()
    again = await _box(world, "box0")
    assert again.id == boxes[0].id
    assert again.detail == ""


async def test_box_without_its_drive_is_adopted_all_the_same(
    world: World, assert_logs: AssertLogs
) -> None:
    box = await _box(world)
    await world.close()
    world.fail_at("drive.prepare")
    with assert_logs("drive not attached"):
        await world.restart()
    stored = await world.store.box(box.id)
    assert stored is not None
    assert stored.state is BoxState.RUNNING


async def test_box_that_cannot_be_adopted_keeps_no_other_away(
    world: World, assert_logs: AssertLogs
) -> None:
    boxes = [await _box(world, name) for name in ("one", "two")]
    await world.close()
    config = world.root / "boxes" / boxes[0].id / "run" / "config.json"
    content = config.read_bytes()
    config.unlink()
    with assert_logs("box is running: the agent finds no configuration; trying again"):
        await world.restart()
    assert world.tunnels.open_for == {boxes[1].id}
    config.write_bytes(content)
    await world.tick(timedelta(seconds=RETRY))
    assert world.tunnels.open_for == {box.id for box in boxes}
    assert not world.lifecycle._timers._unsettled


async def test_stop_without_the_database_still_stops_the_boxes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await _box(world)

    async def away(*_: object) -> list[Box]:
        raise Unavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(world.store, "all_boxes", away)
        with pytest.raises(Unavailable, match="away"):
            await world.close(stop_boxes=True)
    assert not await world.backend.lives(box.id)
    await world.restart()
    assert (await _box(world)).id == box.id


async def test_box_that_does_not_stop_is_named(world: World) -> None:
    boxes = [await _box(world, name) for name in ("one", "two")]
    world.fail_at("backend.stop")
    with pytest.raises(Unavailable) as failed:
        await world.close(stop_boxes=True)
    for box in boxes:
        assert f"box {box.ref}: backend.stop failed" in str(failed.value)
    world.heal()
    await world.restart()
    assert {box.state for box in await world.store.all_boxes()} == {BoxState.RUNNING}


async def test_mounts_that_no_running_box_uses_end_with_adoption(world: World) -> None:
    await world.lifecycle.up(BoxRequest(ALICE.owner, "ws1", parse_spec("ws1/web")))
    dead = await world.lifecycle.up(BoxRequest(ALICE.owner, "ws2", parse_spec("ws2/web")))
    await world.backend.stop(dead.id)
    await world.restart()
    assert world.drives.wanted == {(ALICE.owner, "ws1")}


@pytest.mark.parametrize("call", ["store.remove_box", "backend.destroy"])
async def test_daemon_that_dies_while_it_removes_a_box_leaves_nothing(
    world: World, call: str
) -> None:
    box = await _box(world)
    world.life.end_at(f"{call} done")
    with pytest.raises(Died):
        await world.lifecycle.remove(box)
    await world.crash()
    assert await world.left_overs() == {}


HOURS = timedelta(hours=5)
"""Longer than unused boxes stay."""


async def test_who_only_stops_boxes_removes_none_by_its_own_times(tmp_path: Path) -> None:
    world = World(tmp_path, suspends=True, policy=Policy(idle_reap=timedelta(days=30)))
    await world.start()
    asleep, due = await _box(world, "asleep"), await _box(world, "due^4h")
    await world.lifecycle.suspend(asleep)
    await world.tick(timedelta(minutes=1))
    await world.kill()
    world.clock.turn(HOURS)
    world.policy = Policy()
    world._make_daemon()
    await world.start(stopping=True)
    world.lifecycle._timers.look()
    await world.close(stop_boxes=True)
    stored = {box.id: box.state for box in await world.store.all_boxes()}
    assert stored == {asleep.id: BoxState.SUSPENDED, due.id: BoxState.SUSPENDED}


async def test_who_only_stops_boxes_starts_none_after_a_restart_of_the_host(world: World) -> None:
    box = await _box(world)
    await world.kill()
    await world.backend.stop(box.id)
    world.clock.restart()
    await world.start(stopping=True)
    await world.quiet()
    assert not await world.backend.lives(box.id)
    await world.restart()
    await world.quiet()
    assert not await world.backend.lives(box.id)


@pytest.mark.parametrize("shells", [0, 1])
@pytest.mark.parametrize("orderly", [False, True])
async def test_a_box_in_use_outlives_a_restart_where_none_can_be_suspended(
    world: World, shells: int, *, orderly: bool
) -> None:
    async with world.lifecycle.attach(
        AttachRequest(
            BoxRequest(ALICE.owner, None, parse_spec("web+10m")), why="shell", key_id=None
        )
    ) as held:
        if not shells:
            await _hours_pass(world)
            await world.crash()
    if shells:
        world.lifecycle.activity.report(held.box.id, Presence(shells))
        await _hours_pass(world)
        await (world.restart() if orderly else world.crash())
    await world.look()
    assert await world.store.box(held.box.id) is not None
    await world.tick(ADOPTED_PAUSE - timedelta(seconds=1))
    assert await world.store.box(held.box.id) is not None
    world.lifecycle.activity.report(held.box.id, Presence(shells))
    await world.tick(timedelta(hours=1))
    assert (await world.store.box(held.box.id) is not None) is bool(shells)


async def _hours_pass(world: World) -> None:
    for _ in range(10):
        await world.tick(HOURS / 10)


async def test_an_unused_box_is_removed_some_time_after_a_restart(world: World) -> None:
    box = await _box(world)
    await world.close()
    await world.restart()
    await world.tick(HOURS)
    assert await world.store.box(box.id) is None


async def test_boxes_of_a_host_that_restarts_twice_are_started_again(world: World) -> None:
    box = await _box(world)
    world.steps.held["backend.start"] = asyncio.Event()
    await world.reboot()
    await world.reboot()
    assert not await world.backend.lives(box.id)
    world.steps.held.clear()
    await world.crash()
    await world.quiet()
    assert await world.backend.lives(box.id)
    await world.lifecycle.remove(box)
    await world.crash()
    await world.quiet()
    assert await world.left_overs() == {}
