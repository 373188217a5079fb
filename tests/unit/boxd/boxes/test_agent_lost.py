"""When an agent counts as lost, and what becomes of its box; a real one: tests/integration."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from boxd.backends.interface import InitState
from boxd.boxes.lifecycle import assembly
from boxd.boxes.lifecycle.holds import AttachRequest
from boxd.errors import Unavailable
from boxd.model.box import BoxState
from tests.harness.wait import at_once
from tests.unit.boxd.boxes.life import rows, up

if TYPE_CHECKING:
    from boxd.model.box import Box
    from boxd.tunnel.channel import Tunnel
    from tests.harness.simulation.world import World
    from tests.plugins.strict_logs import AssertLogs

HELD = InitState(stopped="process 7 of the box stopped it with ptrace", switches=5)
ASLEEP = InitState(sleeping=True, switches=5)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STOPPED_S", "STOPPED_LOOK_S", "SILENT_S"):
        monkeypatch.setattr(assembly, name, 0)


def _lose_tunnel(world: World, box_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent does not dial until its box starts anew."""
    dial = world.tunnels.get

    async def get(asked: str, timeout: float = 30) -> Tunnel:
        if asked == box_id and box_id in world.backend.init_states:
            raise Unavailable("the box's agent did not connect")
        return await dial(asked, timeout)

    monkeypatch.setattr(world.tunnels, "get", get)


async def test_a_box_whose_agent_is_stopped_starts_from_its_disk(
    world: World, assert_logs: AssertLogs
) -> None:
    box = await up(world)
    world.backend.init_states[box.id] = HELD
    with assert_logs("box started from its disk: its agent"):
        again = await up(world)
    assert (again.id, again.state) == (box.id, BoxState.RUNNING)
    assert again.detail == (
        "started from its disk: its agent (process 1) does not run: "
        "process 7 of the box stopped it with ptrace"
    )
    assert await rows(world) == [again]
    assert "backend.start" in world.steps.done[-6:]


async def test_an_agent_that_runs_between_two_stops_is_not_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await up(world)
    states = iter(range(100))

    async def init_state(_box_id: str) -> InitState:
        return replace(HELD, switches=next(states))

    monkeypatch.setattr(world.backend, "init_state", init_state)
    assert await up(world) == box


async def test_an_agent_that_sleeps_without_a_tunnel_is_lost(
    world: World, assert_logs: AssertLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await up(world)
    world.backend.init_states[box.id] = ASLEEP
    _lose_tunnel(world, box.id, monkeypatch)
    with assert_logs("its agent .process 1. did nothing for"):
        assert (await up(world)).state is BoxState.RUNNING


@pytest.mark.parametrize("state", [replace(ASLEEP, sleeping=False), InitState()])
async def test_an_agent_that_waits_for_the_machine_is_not_lost(
    world: World, state: InitState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a processor, or for a disk."""
    box = await up(world)
    world.backend.init_states[box.id] = state
    _lose_tunnel(world, box.id, monkeypatch)
    with pytest.raises(Unavailable, match="did not connect"):
        await up(world)
    assert [row.state for row in await rows(world)] == [BoxState.RUNNING]


async def _look_twice(world: World) -> None:
    """The second look finds an agent as the first one has found it."""
    for _ in range(2):
        await world.lifecycle.agents.look()
        await world.lifecycle.agents.idle()


async def test_the_watch_restarts_a_box_whose_agent_is_stopped(
    world: World, assert_logs: AssertLogs
) -> None:
    box = await up(world)
    world.backend.init_states[box.id] = HELD
    with assert_logs("box started from its disk: its agent"):
        await _look_twice(world)
    (row,) = await rows(world)
    assert (row.id, row.state) == (box.id, BoxState.RUNNING)
    assert row.detail.startswith("started from its disk: its agent (process 1) does not run")
    assert world.backend.init_states == {}


async def test_the_watch_needs_an_agent_that_did_not_run_in_between(world: World) -> None:
    box = await up(world)
    for switches in range(5):
        world.backend.init_states[box.id] = replace(HELD, switches=switches)
        await world.lifecycle.agents.look()
        await world.lifecycle.agents.idle()
    assert await rows(world) == [box]


async def test_the_watch_tells_sessions_of_the_box_why_they_end(
    world: World, assert_logs: AssertLogs
) -> None:
    box = await up(world)
    async with world.lifecycle.attach(AttachRequest(box, why="ssh", key_id=None)) as attachment:
        world.backend.init_states[box.id] = HELD
        with assert_logs("box started from its disk"):
            await _look_twice(world)
        assert attachment.lost == (
            f"box {box.ref} restarts from its disk: its agent (process 1) does not run: "
            f"{HELD.stopped}"
        )


async def test_a_lost_agent_is_not_asked_to_give_up_its_drive(
    world: World, assert_logs: AssertLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A box that mounts its drive itself would hold its sessions until the question times out."""
    box = await up(world)
    tunnels: list[object] = []

    async def leave(asked: Box) -> None:
        tunnels.append(world.tunnels.peek(asked.id))

    monkeypatch.setattr(world.drives, "leave", leave)
    world.backend.init_states[box.id] = HELD
    with assert_logs("box started from its disk"):
        await _look_twice(world)
    assert tunnels == [None]


async def test_the_watch_restarts_a_box_whose_agent_sleeps_without_a_tunnel(
    world: World, assert_logs: AssertLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await up(world)
    world.backend.init_states[box.id] = ASLEEP
    world.tunnels.open_for.clear()
    _lose_tunnel(world, box.id, monkeypatch)
    with assert_logs("its agent .process 1. did nothing for"):
        await _look_twice(world)
    assert [row.state for row in await rows(world)] == [BoxState.RUNNING]
    assert world.backend.init_states == {}


async def test_the_watch_marks_a_dead_box_as_suspended(
    world: World, assert_logs: AssertLogs
) -> None:
    box = await up(world)
    world.backend.crash(box.id)
    with assert_logs("box stopped: its processes ended"):
        await _look_twice(world)
    (row,) = await rows(world)
    assert (row.state, row.detail) == (
        BoxState.SUSPENDED,
        "its processes ended; starts again from its disk",
    )
    assert (await up(world)).state is BoxState.RUNNING


async def test_the_watch_leaves_a_frozen_box_alone(sleepy: World) -> None:
    """Its agent is stopped too, so that only the freeze saves it."""
    box = await up(sleepy)
    await sleepy.backend.freeze(box.id)
    sleepy.backend.init_states[box.id] = HELD
    await _look_twice(sleepy)
    assert await rows(sleepy) == [box]
    assert "backend.stop" not in sleepy.steps.done


async def test_the_watch_leaves_a_box_alone_while_a_snapshot_is_taken(sleepy: World) -> None:
    """What a look sees of a box that a checkpoint stops does not count after the checkpoint."""
    box = await up(sleepy)
    taking = asyncio.Event()
    sleepy.steps.held["backend.freeze"] = taking
    snapshot = asyncio.create_task(sleepy.lifecycle.snapshot(box, "s1"))
    await at_once(lambda: "backend.freeze" in sleepy.steps.done)
    sleepy.backend.init_states[box.id] = HELD
    for _ in range(2):
        await sleepy.lifecycle.agents.look()
    sleepy.backend.init_states[box.id] = replace(HELD, stopped="", switches=HELD.switches + 1)
    taking.set()
    await snapshot
    await sleepy.lifecycle.agents.idle()
    assert await rows(sleepy) == [box]


async def test_the_watch_settles_a_restart_that_failed(
    world: World, assert_logs: AssertLogs
) -> None:
    box = await up(world)
    world.backend.init_states[box.id] = HELD
    world.fail_at("backend.stop")
    with assert_logs("box started from its disk"), assert_logs("trying again"):
        await _look_twice(world)
        world.steps.failing.clear()
        assert (await up(world)).state is BoxState.RUNNING
