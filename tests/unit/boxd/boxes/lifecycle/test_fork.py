"""Forks on fakes: both go on, the new one is another box, and nothing of a failure is left."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.lifecycle.holds import AttachRequest
from boxd.boxes.state.requests import BoxRequest
from boxd.errors import (
    BadRequest,
    Conflict,
    NotFound,
    QuotaExceeded,
    Unavailable,
    UnknownImage,
)
from boxd.model.box import BoxState
from boxd.model.progress import Progress
from tests.harness.service.mortal import Died
from tests.harness.simulation.world import Failure, World
from tests.unit.boxd.boxes.life import OWNER, rows, spec, up

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.backends.interface import BoxPlan
    from boxd.model.box import Box
    from boxd.model.snapshot import Snapshot
    from tests.plugins.strict_logs import AssertLogs

FORK_CALLS = (
    "tunnel.quiesce",
    "backend.freeze",
    "backend.snapshot",
    "backend.thaw",
    "store.add_box",
    "backend.clone",
    "backend.resume",
    "backend.drop_snapshot",
)


async def fork(world: World, base: Box | Snapshot, text: str = "child") -> Box:
    """A fork of Alice's."""
    wanted = spec(text)
    return await world.lifecycle.fork(base, wanted.workspace, wanted)


async def names(world: World) -> dict[str, Box]:
    """All boxes by reference."""
    return {box.ref: box for box in await rows(world)}


async def clean(world: World) -> None:
    """There is nothing on the host but whole boxes."""
    left = await world.left_overs()
    ids = sorted(box.id for box in await rows(world))
    assert left.keys() <= {"rows", "backend", "tunnels", "drives", "directories"}
    assert left.get("backend", []) == left.get("directories", []) == ids


async def test_a_fork_goes_on_from_the_memory_of_its_base(sleepy: World) -> None:
    base = await up(sleepy, "web:debian:large")
    child = await fork(sleepy, base)
    assert (child.state, child.memory, child.detail) == (BoxState.RUNNING, False, "")
    assert (child.image, child.flavor, child.cpus, child.mem_mb) == (
        base.image,
        base.flavor,
        base.cpus,
        base.mem_mb,
    )
    assert child.id != base.id
    assert sleepy.steps.done.count("identity") == 2
    assert sleepy.backend.resumes(child.id) == 1
    assert sleepy.backend.plan(child.id).hostname == "child"
    assert await sleepy.backend.lives(base.id)
    assert (await sleepy.store.box(base.id)) == base
    assert sleepy.drives.attached == {base.id, child.id}
    await clean(sleepy)


async def test_what_the_name_says_beside_it_applies(sleepy: World) -> None:
    base = await up(sleepy)
    child = await fork(sleepy, base, "ws1/child^2h+10m")
    assert (child.workspace, child.name) == ("ws1", "child")
    assert child.deadline == sleepy.clock.now() + timedelta(hours=2)
    assert child.grace == timedelta(minutes=10)
    said: list[str] = []
    wanted = spec("other^3650d")
    other = await sleepy.lifecycle.fork(base, None, wanted, Progress(said.append))
    assert other.deadline == sleepy.clock.now() + sleepy.tier.deadline_max
    assert len(said) == 1
    with pytest.raises(BadRequest, match="image and size of its base"):
        await fork(sleepy, base, "third:debian")


async def test_a_sleeping_base_sleeps_on(sleepy: World) -> None:
    base = await sleepy.lifecycle.suspend(await up(sleepy))
    child = await fork(sleepy, base)
    assert child.state is BoxState.RUNNING
    assert await sleepy.store.box(base.id) == base
    assert sleepy.backend.resumes(base.id) == 0
    assert sleepy.backend.resumes(child.id) == 1
    await clean(sleepy)


async def test_a_base_without_memory_gives_its_disk(world: World) -> None:
    await up(world)
    await world.close(stop_boxes=True)
    await world.restart()
    [base] = await rows(world)
    child = await fork(world, base)
    assert (child.state, child.detail) == (BoxState.RUNNING, "")
    assert world.backend.resumes(child.id) == 0


async def test_ten_forks_of_one_base(sleepy: World) -> None:
    base = await up(sleepy)
    children = [await fork(sleepy, base, f"child{n}") for n in range(10)]
    assert len({child.id for child in children}) == 10
    await clean(sleepy)


async def test_forks_of_a_snapshot_whose_box_is_gone(sleepy: World) -> None:
    base = await up(sleepy)
    taken = await sleepy.lifecycle.snapshot(base, None)
    await sleepy.lifecycle.remove(base)
    for name in ("one", "two"):
        assert (await fork(sleepy, taken, name)).state is BoxState.RUNNING
    assert await sleepy.backend.snapshots() == (taken.id,)


async def test_a_base_in_use_is_refused_and_says_by_whom(sleepy: World) -> None:
    attach = sleepy.lifecycle.attach
    async with attach(
        AttachRequest(BoxRequest(OWNER, None, spec("web")), why="shell", key_id=None)
    ) as held:
        taken = held.box
        with pytest.raises(Conflict, match=r"1 shell.*fork a snapshot"):
            await fork(sleepy, taken)
    assert list(await names(sleepy)) == ["web"]
    await clean(sleepy)


async def test_a_taken_name_is_refused_before_the_base_is_touched(sleepy: World) -> None:
    base, other = await up(sleepy), await up(sleepy, "child")
    with pytest.raises(Conflict, match="box child already exists"):
        await fork(sleepy, base)
    with pytest.raises(Conflict, match="box web already exists"):
        await fork(sleepy, base, "web")
    assert "backend.freeze" not in sleepy.steps.done
    said: list[str] = []
    fresh = await sleepy.lifecycle.fork(base, None, spec("child+"), Progress(said.append))
    assert fresh.id != other.id
    assert said == [f"removed the old box child ({other.id[:12]})"]
    await clean(sleepy)


async def test_a_fresh_fork_that_is_refused_leaves_the_old_box(tmp_path: Path) -> None:
    world = World(tmp_path, suspends=True, tier=lambda tier: replace(tier, mem_mb=1024))
    await world.start()
    try:
        base, old = await up(world), await up(world, "child")
        taken = await world.lifecycle.snapshot(base, None)
        for gone in (replace(taken, image="left"), replace(taken, id="0" * 32)):
            with pytest.raises((UnknownImage, NotFound)):
                await fork(world, gone, "child+")
        with pytest.raises(QuotaExceeded):
            await fork(world, replace(taken, mem_mb=4096), "child+")
        assert await names(world) == {"web": base, "child": old}
        assert await world.backend.lives(old.id)
        assert (await fork(world, taken, "child+")).id != old.id
    finally:
        await world.close()


async def test_memory_does_not_go_to_another_workspace(sleepy: World) -> None:
    """What its processes have open on /wrk would be other files there."""
    base = await up(sleepy)
    child = await fork(sleepy, base, "ws1/child")
    assert (child.state, child.drive) == (BoxState.RUNNING, True)
    assert "the drive of another workspace" in child.detail
    assert sleepy.backend.resumes(child.id) == 0
    await sleepy.store.change_box(base.id, drive=False)
    without = await fork(sleepy, replace(base, drive=False), "ws1/other")
    assert (without.detail, sleepy.backend.resumes(without.id)) == ("", 1)
    await clean(sleepy)


async def test_limits_hold_for_forks(tmp_path: Path) -> None:
    world = World(tmp_path, suspends=True, tier=lambda tier: replace(tier, boxes=1))
    await world.start()
    try:
        base = await up(world)
        with pytest.raises(QuotaExceeded, match="1 boxes per owner"):
            await fork(world, base)
        await clean(world)
        assert await world.backend.lives(base.id)
    finally:
        await world.close()


@pytest.mark.parametrize(
    "step",
    ["tunnel.quiesce", "backend.freeze", "backend.snapshot", "backend.clone", "backend.resume"],
)
async def test_a_fork_that_fails_leaves_the_base_alone(sleepy: World, step: str) -> None:
    base = await up(sleepy)
    sleepy.fail_at(step)
    with pytest.raises((Failure, Unavailable), match=step):
        await fork(sleepy, base)
    sleepy.heal()
    assert await names(sleepy) == {"web": base}
    assert await sleepy.backend.lives(base.id)
    await clean(sleepy)
    assert (await fork(sleepy, base)).state is BoxState.RUNNING


async def test_memory_that_is_lost_on_the_way_is_a_start_from_disk(
    sleepy: World, assert_logs: AssertLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = await up(sleepy)
    clone = sleepy.backend.clone

    async def losing(plan: BoxPlan, snapshot_id: str) -> None:
        await clone(plan, snapshot_id)
        sleepy.backend.lost.add(plan.box_id)

    monkeypatch.setattr(sleepy.backend, "clone", losing)
    with assert_logs("starts from its disk"):
        child = await fork(sleepy, base)
    assert child.state is BoxState.RUNNING
    assert child.detail == "started from its disk: its memory cannot be brought back"


@pytest.mark.parametrize("end", ["", " done"])
@pytest.mark.parametrize("call", FORK_CALLS)
async def test_a_daemon_that_dies_in_a_fork(sleepy: World, call: str, end: str) -> None:
    base = await up(sleepy)
    sleepy.life.end_at(call + end)
    with pytest.raises(Died):
        await fork(sleepy, base)
    await sleepy.crash()
    now = await names(sleepy)
    assert now.pop("web").state is BoxState.RUNNING
    assert await sleepy.backend.lives(base.id)
    assert {box.state for box in now.values()} <= {BoxState.RUNNING}
    assert bool(now) is (call == "backend.drop_snapshot")
    await clean(sleepy)
