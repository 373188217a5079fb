"""Boxes that nobody uses: what counts as use, what is due then, and what survives a restart."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.lifecycle.adoption import ADOPTED_PAUSE
from boxd.boxes.lifecycle.holds import AttachRequest
from boxd.boxes.presence.activity import FIRST_PAUSE, LONGEST_PAUSE
from boxd.boxes.state.requests import BoxRequest
from boxd.boxes.timing.policy import SHIPPED, Policy
from boxd.boxes.timing.timers import UPKEEP
from boxd.errors import BadRequest, NotFound
from boxd.model.box import BoxState
from boxd.model.presence import Presence
from boxd.model.view import NextAct
from tests.harness.simulation.world import ALICE, World
from tests.unit.boxd.boxes.life import OWNER, rows, spec, up

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.model.box import Box
    from tests.plugins.strict_logs import AssertLogs

IDLE, REAP = SHIPPED.idle_timeout, SHIPPED.idle_reap
SECOND = timedelta(seconds=1)


async def stored(world: World) -> Box:
    """The only box."""
    [box] = await rows(world)
    return box


async def state(world: World) -> BoxState:
    """Of the only box."""
    return (await stored(world)).state


async def use(world: World, text: str = "web", why: str = "shell") -> Box:
    """Somebody attaches and detaches again."""
    async with world.lifecycle.attach(
        AttachRequest(BoxRequest(OWNER, None, spec(text)), why=why, key_id=None)
    ) as held:
        return held.box


async def shown(world: World) -> NextAct | None:
    """What `ls` tells of the only box."""
    [view] = await world.operations.boxes.list_boxes(ALICE)
    return view.next


async def test_unused_box_is_suspended_at_the_moment_that_is_told_then_removed(
    sleepy: World,
) -> None:
    await use(sleepy)
    assert await shown(sleepy) == NextAct("suspended", sleepy.clock.now() + IDLE)
    await sleepy.tick(IDLE - SECOND)
    assert await state(sleepy) is BoxState.RUNNING
    await sleepy.tick(SECOND)
    assert await state(sleepy) is BoxState.SUSPENDED
    assert (await stored(sleepy)).memory
    assert await shown(sleepy) == NextAct("removed", sleepy.clock.now() + REAP)
    await sleepy.tick(REAP - SECOND)
    assert len(await rows(sleepy)) == 1
    await sleepy.tick(SECOND)
    assert await sleepy.left_overs() == {}


async def test_a_box_that_was_only_made_counts_from_its_making(sleepy: World) -> None:
    await up(sleepy)
    await sleepy.tick(IDLE)
    assert await state(sleepy) is BoxState.SUSPENDED


async def test_a_woken_box_counts_from_its_waking(sleepy: World) -> None:
    await use(sleepy)
    await sleepy.tick(IDLE)
    await sleepy.tick(REAP / 2)
    await up(sleepy)
    await sleepy.tick(IDLE - SECOND)
    assert await state(sleepy) is BoxState.RUNNING
    await sleepy.tick(SECOND)
    assert await state(sleepy) is BoxState.SUSPENDED
    await sleepy.tick(REAP - SECOND)
    assert len(await rows(sleepy)) == 1


@pytest.mark.parametrize("why", ["shell", "exec", "sftp", "terminal", "proxy", "forward"])
async def test_what_is_attached_holds_a_box_however_quiet_it_is(sleepy: World, why: str) -> None:
    async with sleepy.lifecycle.attach(
        AttachRequest(BoxRequest(OWNER, None, spec("web")), why=why, key_id=None)
    ):
        await sleepy.tick(10 * REAP)
        assert await state(sleepy) is BoxState.RUNNING
        assert await shown(sleepy) is None
    assert await shown(sleepy) == NextAct("suspended", sleepy.clock.now() + IDLE)
    await sleepy.tick(IDLE)
    assert await state(sleepy) is BoxState.SUSPENDED


async def test_of_several_attachments_the_last_one_counts(sleepy: World) -> None:
    async with AsyncExitStack() as stack:
        for why in ("shell", "exec"):
            await stack.enter_async_context(
                sleepy.lifecycle.attach(
                    AttachRequest(BoxRequest(OWNER, None, spec("web")), why=why, key_id=None)
                )
            )
        await use(sleepy)
        await sleepy.tick(2 * IDLE)
        assert await state(sleepy) is BoxState.RUNNING
    await sleepy.tick(IDLE)
    assert await state(sleepy) is BoxState.SUSPENDED


async def test_polling_holds_no_box(sleepy: World) -> None:
    box = await up(sleepy)
    for _ in range(4):
        await sleepy.tick(IDLE / 4)
        await sleepy.operations.boxes.list_boxes(ALICE)
        await sleepy.operations.boxes.list_boxes(ALICE, everywhere=True)
        await sleepy.operations.directory.resolve(ALICE, box.id)
        await sleepy.lifecycle.request(box.id, "life", {})
        await sleepy.lifecycle.request(box.id, "workspace", {"verb": "info"})
    assert await state(sleepy) is BoxState.SUSPENDED


async def test_a_shell_that_nobody_is_attached_to_holds_a_box(sleepy: World) -> None:
    box = await use(sleepy)
    sleepy.lifecycle.activity.report(box.id, Presence(2))
    await sleepy.tick(2 * IDLE)
    [view] = await sleepy.operations.boxes.list_boxes(ALICE)
    assert (view.state, view.attached, view.why) == ("running", 0, {"detached shells": 2})
    assert view.next is None
    sleepy.lifecycle.activity.report(box.id, Presence(0))
    await sleepy.tick(IDLE - SECOND)
    assert await state(sleepy) is BoxState.RUNNING
    await sleepy.tick(SECOND)
    assert await state(sleepy) is BoxState.SUSPENDED


async def test_a_background_command_holds_a_box(sleepy: World) -> None:
    box = await use(sleepy)
    sleepy.lifecycle.activity.report(box.id, Presence(0, 2))
    await sleepy.tick(2 * IDLE)
    [view] = await sleepy.operations.boxes.list_boxes(ALICE)
    assert (view.state, view.attached, view.why) == ("running", 0, {"command": 2})
    assert view.next is None
    sleepy.lifecycle.activity.report(box.id, Presence(0, 0))
    await sleepy.tick(IDLE - SECOND)
    assert await state(sleepy) is BoxState.RUNNING
    await sleepy.tick(SECOND)
    assert await state(sleepy) is BoxState.SUSPENDED


async def test_a_background_command_is_suspended_on_request(sleepy: World) -> None:
    box = await use(sleepy)
    sleepy.tunnels.commands[box.id] = 1
    sleepy.lifecycle.activity.report(box.id, Presence(0, 1))
    await sleepy.operations.boxes.suspend(ALICE, box.id)
    assert await state(sleepy) is BoxState.SUSPENDED
    [view] = await sleepy.operations.boxes.list_boxes(ALICE)
    assert view.why == {}


async def test_a_background_command_that_started_just_now_keeps_its_box_awake(
    sleepy: World,
) -> None:
    box = await up(sleepy)
    sleepy.tunnels.commands[box.id] = 1
    await sleepy.tick(IDLE)
    assert await state(sleepy) is BoxState.RUNNING


async def test_an_agent_that_repeats_itself_is_no_use(sleepy: World) -> None:
    box = await up(sleepy)
    for _ in range(4):
        sleepy.lifecycle.activity.report(box.id, Presence(0))
        await sleepy.tick(IDLE / 4)
    assert await state(sleepy) is BoxState.SUSPENDED


async def test_a_shell_that_came_up_just_now_keeps_its_box_awake(sleepy: World) -> None:
    box = await up(sleepy)
    sleepy.tunnels.shells[box.id] = 1
    await sleepy.tick(IDLE)
    assert (await state(sleepy), (await stored(sleepy)).detail) == (BoxState.RUNNING, "")
    assert "backend.freeze" not in sleepy.steps.done
    assert sleepy.tunnels.open_for == {box.id}
    assert (await sleepy.lifecycle.suspend(await stored(sleepy))).state is BoxState.SUSPENDED


async def test_grace_keeps_a_box_awake_longer_and_never_shorter(sleepy: World) -> None:
    await use(sleepy, "web+10m")
    await sleepy.tick(timedelta(minutes=10) - SECOND)
    assert await state(sleepy) is BoxState.RUNNING
    await sleepy.tick(SECOND)
    assert await state(sleepy) is BoxState.SUSPENDED
    await use(sleepy, "web+10s")
    await sleepy.tick(IDLE - SECOND)
    assert await state(sleepy) is BoxState.RUNNING
    await sleepy.tick(SECOND)
    assert await state(sleepy) is BoxState.SUSPENDED


async def test_grace_ends_a_box_that_cannot_be_suspended(world: World) -> None:
    await use(world, "web+10m")
    await world.tick(timedelta(minutes=10) - SECOND)
    assert await state(world) is BoxState.RUNNING
    await world.tick(SECOND)
    assert await world.left_overs() == {}


async def test_a_pin_holds_and_its_end_lets_go(sleepy: World) -> None:
    await use(sleepy)
    view = await sleepy.operations.boxes.pin(ALICE, "web", span=timedelta(hours=5), why="training")
    assert view.pinned_until == sleepy.clock.now() + timedelta(hours=5)
    assert (view.pin_why, view.why) == ("training", {"pin": 1})
    assert view.next == NextAct("suspended", view.pinned_until)
    await sleepy.tick(timedelta(hours=5) - SECOND)
    assert await state(sleepy) is BoxState.RUNNING
    await sleepy.tick(SECOND)
    assert await state(sleepy) is BoxState.SUSPENDED
    [view] = await sleepy.operations.boxes.list_boxes(ALICE)
    assert (view.pinned_until, view.pin_why, view.why) == (None, "", {})


async def test_unpin_lets_go_at_once(sleepy: World) -> None:
    await use(sleepy)
    await sleepy.operations.boxes.pin(ALICE, "web", span=timedelta(hours=5))
    await sleepy.tick(2 * IDLE)
    assert (await sleepy.operations.boxes.unpin(ALICE, "web")).pinned_until is None
    await sleepy.look()
    assert await state(sleepy) is BoxState.SUSPENDED


async def test_a_pin_on_a_sleeper_wakes_nothing_and_postpones_its_removal(sleepy: World) -> None:
    box = await use(sleepy)
    await sleepy.tick(IDLE)
    await sleepy.operations.boxes.pin(ALICE, "web", span=2 * REAP)
    await sleepy.tick(2 * REAP - SECOND)
    assert await state(sleepy) is BoxState.SUSPENDED
    assert sleepy.backend.resumes(box.id) == 0
    await sleepy.tick(SECOND)
    assert await sleepy.left_overs() == {}


async def test_no_pin_outlives_the_deadline(sleepy: World) -> None:
    await use(sleepy, "web^1h")
    await sleepy.operations.boxes.pin(ALICE, "web", span=timedelta(days=1))
    await sleepy.tick(timedelta(hours=1))
    assert await sleepy.left_overs() == {}


@pytest.mark.parametrize(
    ("span", "why", "told"),
    [
        (timedelta(days=8), "", "at most 7d"),
        (timedelta(0), "", "must be positive"),
        (timedelta(hours=-1), "", "must be positive"),
        (timedelta(hours=1), "x" * 201, "at most 200"),
        (timedelta(hours=1), "a\nb", "printable"),
    ],
)
async def test_pins_out_of_bounds_are_refused(
    sleepy: World, span: timedelta, why: str, told: str
) -> None:
    await up(sleepy)
    with pytest.raises(BadRequest, match=told):
        await sleepy.operations.boxes.pin(ALICE, "web", span=span, why=why)


async def test_the_box_itself_pins_and_asks(sleepy: World) -> None:
    box = await up(sleepy)
    request = sleepy.lifecycle.request
    until = (sleepy.clock.now() + timedelta(hours=1)).isoformat(timespec="seconds")
    pinned = {"pinned_until": until, "pin_why": "build", "auto_suspend": True}
    assert await request(box.id, "pin", {"for_s": 3600, "why": "build"}) == pinned
    disk = {"disk_limit": box.disk_mb << 20, "disk_used": 0}
    assert await request(box.id, "life", {}) == {**pinned, **disk}
    free = {"pinned_until": None, "pin_why": "", "auto_suspend": True}
    assert await request(box.id, "unpin", {}) == free
    assert await request(box.id, "auto_suspend", {"on": False}) == {**free, "auto_suspend": False}
    with pytest.raises(BadRequest, match="unknown request"):
        await request(box.id, "explode", {})
    with pytest.raises(NotFound):
        await request("0" * 32, "life", {})


async def test_auto_suspend_off_holds_until_it_is_on_again(sleepy: World) -> None:
    box = await use(sleepy)
    await sleepy.lifecycle.request(box.id, "auto_suspend", {"on": False})
    assert await shown(sleepy) is None
    await sleepy.tick(2 * REAP)
    await sleepy.restart()
    await sleepy.tick(2 * REAP)
    assert await state(sleepy) is BoxState.RUNNING
    await sleepy.lifecycle.request(box.id, "auto_suspend", {"on": True})
    await sleepy.look()
    assert await state(sleepy) is BoxState.SUSPENDED


async def test_a_durable_box_sleeps_and_is_not_removed(sleepy: World) -> None:
    box = await use(sleepy, "web^9h")
    await sleepy.store.change_box(box.id, durable=True)
    sleepy.lifecycle._timers.watch(await stored(sleepy))
    await sleepy.tick(IDLE)
    assert await state(sleepy) is BoxState.SUSPENDED
    await sleepy.tick(2 * REAP)
    assert await state(sleepy) is BoxState.SUSPENDED
    await sleepy.tick(REAP)
    assert await sleepy.left_overs() == {}


async def test_times_are_the_service_s(tmp_path: Path) -> None:
    policy = Policy(idle_timeout=timedelta(minutes=1), idle_reap=timedelta(minutes=5))
    world = World(tmp_path, suspends=True, policy=policy)
    await world.start()
    try:
        await use(world)
        await world.tick(timedelta(minutes=1))
        assert await state(world) is BoxState.SUSPENDED
        await world.tick(timedelta(minutes=5))
        assert await world.left_overs() == {}
    finally:
        await world.close()


# --- failing suspensions ----------------------------------------------------------------------


async def test_a_box_that_cannot_be_suspended_is_tried_ever_more_seldom(
    sleepy: World, assert_logs: AssertLogs
) -> None:
    await up(sleepy)
    sleepy.fail_at("backend.save_memory")
    tried = 0
    pause = FIRST_PAUSE
    await sleepy.tick(IDLE - SECOND)
    with assert_logs("could not be suspended: backend.save_memory failed; the box stays awake"):
        for _ in range(8):
            await sleepy.tick(SECOND)
            tried += 1
            assert sleepy.steps.done.count("backend.save_memory") == tried
            now = await stored(sleepy)
            assert now.detail == "could not be suspended: backend.save_memory failed"
            assert await shown(sleepy) == NextAct("suspended", sleepy.clock.now() + pause)
            await sleepy.tick(pause - SECOND)
            pause = min(2 * pause, LONGEST_PAUSE)
    assert pause == LONGEST_PAUSE
    assert sleepy.steps.done.count("backend.save_memory") == tried
    sleepy.heal()
    await sleepy.tick(SECOND)
    assert await state(sleepy) is BoxState.SUSPENDED


@pytest.mark.parametrize(("why", "resets"), [("shell", True), ("exec", True), ("proxy", False)])
async def test_work_in_the_box_begins_the_tries_anew(
    sleepy: World, assert_logs: AssertLogs, why: str, *, resets: bool
) -> None:
    """A user may have ended what kept the box awake; a program that polls a port has not."""
    await up(sleepy)
    sleepy.fail_at("backend.save_memory")
    with assert_logs("could not be suspended: backend.save_memory failed; the box stays awake"):
        await sleepy.tick(IDLE)
        for times in (1, 2, 4):
            await sleepy.tick(times * FIRST_PAUSE)
    paused = await shown(sleepy)
    await use(sleepy, why=why)
    expected = NextAct("suspended", sleepy.clock.now() + IDLE) if resets else paused
    assert await shown(sleepy) == expected
    sleepy.heal()
    await sleepy.tick(IDLE)
    assert await state(sleepy) is (BoxState.SUSPENDED if resets else BoxState.RUNNING)


# --- clocks and restarts ----------------------------------------------------------------------


@pytest.mark.parametrize("step", [timedelta(days=365), timedelta(days=-365)])
async def test_a_step_of_the_wall_clock_moves_no_timer_but_deadlines(
    sleepy: World, step: timedelta
) -> None:
    await use(sleepy)
    await sleepy.operations.boxes.pin(ALICE, "web", span=timedelta(hours=1))
    sleepy.clock.set(step)
    await sleepy.look()
    assert await state(sleepy) is BoxState.RUNNING
    await sleepy.restart()
    await sleepy.tick(timedelta(hours=1) - SECOND)
    assert await state(sleepy) is BoxState.RUNNING
    await sleepy.tick(SECOND)
    assert await state(sleepy) is BoxState.SUSPENDED
    sleepy.clock.set(step)
    await sleepy.restart()
    await sleepy.tick(REAP - SECOND)
    assert await state(sleepy) is BoxState.SUSPENDED
    await sleepy.tick(SECOND)
    assert await sleepy.left_overs() == {}


async def test_a_deadline_follows_the_wall_clock(sleepy: World) -> None:
    await use(sleepy, "web^1h")
    sleepy.clock.set(timedelta(hours=1))
    await sleepy.look()
    assert await sleepy.left_overs() == {}


async def test_time_without_a_daemon_does_not_count_but_for_deadlines(sleepy: World) -> None:
    await use(sleepy, "web")
    await use(sleepy, "other^2h")
    await sleepy.tick(IDLE / 2)
    await sleepy.close()
    sleepy.clock.turn(timedelta(days=1))
    await sleepy.restart()
    assert [box.name for box in await rows(sleepy)] == ["web"]
    await sleepy.tick(IDLE / 2 - SECOND)
    assert await state(sleepy) is BoxState.RUNNING
    await sleepy.tick(SECOND)
    assert await state(sleepy) is BoxState.SUSPENDED
    await sleepy.tick(REAP / 2)
    await sleepy.close()
    sleepy.clock.turn(timedelta(days=1))
    await sleepy.restart()
    await sleepy.tick(REAP / 2 - SECOND)
    assert len(await rows(sleepy)) == 1
    await sleepy.tick(SECOND)
    assert await sleepy.left_overs() == {}


async def test_what_elapsed_survives_restarts_of_daemon_and_host(sleepy: World) -> None:
    await use(sleepy)
    await sleepy.tick(IDLE)
    for end in (sleepy.restart, sleepy.reboot):
        await sleepy.tick(REAP / 4)
        await end()
    await sleepy.tick(REAP / 2 - SECOND)
    assert len(await rows(sleepy)) == 1
    await sleepy.tick(SECOND)
    assert await sleepy.left_overs() == {}


async def test_a_killed_daemon_forgets_little(sleepy: World) -> None:
    await use(sleepy)
    for _ in range(6):
        await sleepy.tick(IDLE / 6)
        await use(sleepy)
    await sleepy.tick(timedelta(seconds=UPKEEP))
    await sleepy.crash()
    await sleepy.tick(IDLE - timedelta(seconds=UPKEEP) - SECOND)
    assert await state(sleepy) is BoxState.RUNNING
    await sleepy.tick(SECOND)
    assert await state(sleepy) is BoxState.SUSPENDED


async def test_uses_are_written_together(sleepy: World) -> None:
    for _ in range(50):
        await use(sleepy)
    before = len(sleepy.life.steps)
    await sleepy.tick(timedelta(seconds=UPKEEP))
    assert sleepy.life.steps[before:].count("store.change_box") == 1
    await sleepy.tick(timedelta(seconds=UPKEEP))
    assert sleepy.life.steps[before:].count("store.change_box") == 1
    assert (await stored(sleepy)).idle_since is not None


async def test_a_new_daemon_waits_for_the_agents_before_it_suspends(sleepy: World) -> None:
    box = await use(sleepy)
    await sleepy.tick(IDLE - SECOND)
    await sleepy.restart()
    await sleepy.tick(SECOND)
    assert await state(sleepy) is BoxState.RUNNING
    sleepy.lifecycle.activity.report(box.id, Presence(1))
    await sleepy.tick(2 * ADOPTED_PAUSE)
    assert await state(sleepy) is BoxState.RUNNING
