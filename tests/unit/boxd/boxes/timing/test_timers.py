"""Deadlines and retries: no box delays another, no failure ends the looking."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.lifecycle.changes import Changes
from boxd.boxes.lifecycle.holds import AttachRequest
from boxd.boxes.state.requests import BoxRequest
from boxd.boxes.timing import timers
from boxd.errors import Unavailable
from boxd.model.box import BoxState
from boxd.model.view import NextAct
from boxd.names.spec import parse_spec
from tests.doubles.control_store import MemoryStore
from tests.harness.simulation.world import ALICE, Failure, World
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from boxd.boxes.timing.schedule import Facts
    from boxd.model.box import Box
    from tests.plugins.strict_logs import AssertLogs


class Away(MemoryStore):
    """Forgets no box while `away`."""

    away = False

    async def remove_box(self, box_id: str) -> None:
        """Fails as a database that is away."""
        if self.away:
            raise Unavailable("the control database does not answer")
        await super().remove_box(box_id)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks all the time."""
    monkeypatch.setattr(timers, "TICK", 0.001)


@pytest.fixture
def store() -> Away:
    """The store of `world`."""
    return Away()


@pytest.fixture
async def world(tmp_path: Path, store: Away) -> AsyncIterator[World]:
    """A started core on fakes."""
    made = World(tmp_path, store=store)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


async def up(world: World, text: str) -> Box:
    """The box of a spec, running."""
    return await world.lifecycle.up(BoxRequest(ALICE.owner, None, parse_spec(text)))


async def test_a_removal_that_hangs_delays_no_deadline(
    world: World, assert_logs: AssertLogs
) -> None:
    stuck, other = await up(world, "stuck"), await up(world, "other^1h")
    world.fail_at("backend.destroy")
    with assert_logs("trying again"):
        await world.lifecycle.remove(stuck)
    world.heal()
    world.steps.held["backend.destroy"] = asyncio.Event()
    seen = world.steps.done.count("backend.destroy")
    world.clock.turn(timedelta(minutes=1))
    await until(lambda: world.steps.done.count("backend.destroy") == seen + 1)
    world.clock.turn(timedelta(hours=1))
    await until(lambda: world.steps.done.count("backend.destroy") == seen + 2)
    assert await world.store.box(other.id) is None
    world.steps.held["backend.destroy"].set()
    await until(lambda: not world.lifecycle._timers._half_removed)
    await world.close()
    assert await world.left_overs() == {}


async def test_a_bug_with_one_box_keeps_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, assert_logs: AssertLogs
) -> None:
    bad, good = await up(world, "bad^1h"), await up(world, "good^1h")
    destroy, seen = Changes.destroy, []

    async def buggy(changes: Changes, box: Box, why: str) -> None:
        seen.append(box.id)
        if box.id == bad.id and seen.count(bad.id) == 1:
            raise RuntimeError("a bug")
        await destroy(changes, box, why)

    monkeypatch.setattr(Changes, "destroy", buggy)
    with assert_logs("action on the box failed"):
        await world.tick(timedelta(hours=1))
        await until(lambda: len(seen) == 3)
    await world.close()
    assert sorted(seen) == sorted([bad.id, bad.id, good.id])
    assert await world.left_overs() == {}


async def test_a_deadline_in_an_outage_is_enforced_afterwards(
    world: World, store: Away, assert_logs: AssertLogs
) -> None:
    box = await up(world, "web^1h")
    store.away = True
    with assert_logs("does not answer; trying again"):
        world.clock.turn(timedelta(hours=1))
        await until(lambda: bool(world.lifecycle._timers._logged))
    store.away = False
    await until(lambda: not world.lifecycle._timers.knows(box.id))
    await world.close()
    assert await world.left_overs() == {}


async def test_creation_that_fails_in_an_outage_is_undone_with_its_row(
    world: World, store: Away, assert_logs: AssertLogs
) -> None:
    world.fail_at("backend.start")
    store.away = True
    with assert_logs("trying again"), pytest.raises(Failure, match=r"backend\.start failed"):
        await up(world, "web")
    assert set(await world.left_overs()) == {"rows"}
    store.away = False
    world.heal()
    world.clock.turn(timedelta(minutes=1))
    await until(lambda: not world.lifecycle._timers._half_removed)
    assert await world.left_overs() == {}
    assert (await up(world, "web")).state is BoxState.RUNNING


async def test_who_holds_a_box_learns_what_became_of_it(world: World) -> None:
    lifecycle = world.lifecycle
    wanted = parse_spec("web^1h")
    async with lifecycle.attach(
        AttachRequest(BoxRequest(ALICE.owner, None, wanted), why="exec", key_id=None)
    ) as held:
        assert held.lost == "the connection to the box was lost"
        world.clock.turn(timedelta(hours=1))
        await until(lambda: held.lost == "box web reached its deadline")
    wanted = parse_spec("ws/other")
    async with lifecycle.attach(
        AttachRequest(BoxRequest(ALICE.owner, "ws", wanted), why="exec", key_id=None)
    ) as held:
        await lifecycle.remove(held.box)
        assert held.lost == "box ws/other was removed"


async def test_the_moment_that_is_told_is_the_moment_of_the_removal(world: World) -> None:
    box, moment = await up(world, "web^1h"), timedelta(microseconds=1)
    [view] = await world.operations.boxes.list_boxes(ALICE)
    assert view.next == NextAct("removed", world.clock.now() + timedelta(hours=1))
    assert view.to_json()["next"] == {"act": "removed", "at": view.next.at.isoformat()}
    world.clock.turn(timedelta(hours=1) - moment)
    assert not world.lifecycle._timers.deadline_passed(box)
    world.clock.turn(moment)
    assert world.lifecycle._timers.deadline_passed(box)
    await until(lambda: not world.lifecycle._timers.knows(box.id))
    assert await world.operations.boxes.list_boxes(ALICE) == []


async def test_a_bug_in_what_is_known_of_one_box_keeps_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, assert_logs: AssertLogs
) -> None:
    bad, good = await up(world, "bad"), await up(world, "good^1h")
    facts = world.lifecycle._timers._facts

    def buggy(box: Box) -> Facts:
        if box.id == bad.id:
            raise RuntimeError("a bug")
        return facts(box)

    monkeypatch.setattr(world.lifecycle._timers, "_facts", buggy)
    with assert_logs("action on the box failed"):
        world.clock.turn(timedelta(hours=1))
        await until(lambda: not world.lifecycle._timers.knows(good.id))
    assert world.lifecycle._timers.knows(bad.id)
    monkeypatch.undo()
    await world.lifecycle.remove(bad)


async def test_an_end_of_the_looks_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch, assert_logs: AssertLogs
) -> None:
    def broken() -> None:
        raise RuntimeError("a bug")

    (loop,) = world.lifecycle._timers._loop
    with (
        assert_logs("box timers: the task failed because of a bug"),
        monkeypatch.context() as patched,
    ):
        patched.setattr(world.lifecycle._timers, "look", broken)
        await until(loop.done)
