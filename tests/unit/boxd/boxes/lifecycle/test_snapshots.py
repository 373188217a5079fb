"""Snapshots on fakes: taken, restored, removed; each step, its failing, and the daemon's death."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.lifecycle.holds import AttachRequest
from boxd.boxes.lifecycle.suspend import PRE_RESTORE
from boxd.boxes.state.requests import BoxRequest
from boxd.errors import Conflict, NotFound, QuotaExceeded, Unsupported
from boxd.model.box import BoxState
from boxd.names.spec import parse_spec
from tests.harness.service.mortal import Died
from tests.harness.simulation.world import Failure, World
from tests.unit.boxd.boxes.life import OWNER, rows, spec, up

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.model.box import Box
    from boxd.model.snapshot import Snapshot
    from tests.plugins.strict_logs import AssertLogs

TAKE_CALLS = (
    "store.add_snapshot",
    "tunnel.quiesce",
    "backend.freeze",
    "backend.snapshot",
    "backend.thaw",
    "tunnel.open",
    "store.finish_snapshot",
)


async def stored(world: World) -> Box:
    """The only box."""
    [box] = await rows(world)
    return box


async def snapshots(world: World) -> dict[str, Snapshot]:
    """All of them by name."""
    return {one.name: one for one in await world.store.all_snapshots()}


async def steady(world: World) -> None:
    """Box and snapshots are whole: rows and host tell the same."""
    box = await stored(world)
    assert box.state in (BoxState.RUNNING, BoxState.SUSPENDED)
    found = await world.backend.look(box.id)
    assert found is not None
    assert found.running is (box.state is BoxState.RUNNING)
    assert (found.memory, found.frozen) == (box.memory, False)
    told = await snapshots(world)
    assert all(one.ready for one in told.values())
    assert set(await world.backend.snapshots()) == {one.id for one in told.values()}


async def test_a_running_box_goes_on_after_its_snapshot(sleepy: World) -> None:
    box = await up(sleepy)
    taken = await sleepy.lifecycle.snapshot(box, None)
    assert (taken.name, taken.memory, taken.ready, taken.box_id) == ("s1", True, True, box.id)
    assert await snapshots(sleepy) == {"s1": taken}
    assert await sleepy.backend.lives(box.id)
    assert (await stored(sleepy)) == box
    assert (await sleepy.lifecycle.snapshot(box, None)).name == "s2"
    assert (await sleepy.lifecycle.snapshot(box, "mine")).name == "mine"
    with pytest.raises(Conflict, match="mine"):
        await sleepy.lifecycle.snapshot(box, "mine")
    await steady(sleepy)
    assert (await up(sleepy)).id == box.id


async def test_a_sleeping_box_is_not_woken(sleepy: World) -> None:
    box = await sleepy.lifecycle.suspend(await up(sleepy))
    assert (await sleepy.lifecycle.snapshot(box, None)).memory
    assert (await stored(sleepy)) == box
    assert sleepy.backend.resumes(box.id) == 0


async def test_a_host_that_cannot_suspend_takes_snapshots_of_stopped_boxes(world: World) -> None:
    box = await up(world)
    with pytest.raises(Unsupported, match="cannot suspend"):
        await world.lifecycle.snapshot(box, None)
    await world.close(stop_boxes=True)
    await world.restart()
    assert not (await world.lifecycle.snapshot(box, None)).memory


async def test_what_is_in_use_or_confidential_is_refused(sleepy: World) -> None:
    attach = sleepy.lifecycle.attach
    async with attach(
        AttachRequest(BoxRequest(OWNER, None, spec("web")), why="shell", key_id=None)
    ) as held:
        with pytest.raises(Conflict, match="1 shell"):
            await sleepy.lifecycle.snapshot(held.box, None)
        with pytest.raises(NotFound):
            await sleepy.lifecycle.restore(held.box, "s1")
        box = held.box
    await sleepy.lifecycle.snapshot(box, None)
    async with attach(
        AttachRequest(BoxRequest(OWNER, None, spec("web")), why="shell", key_id=None)
    ):
        with pytest.raises(Conflict, match="1 shell"):
            await sleepy.lifecycle.restore(box, "s1")
    await sleepy.store.change_box(box.id, confidential=True)
    with pytest.raises(Conflict, match=r"is confidential.*ssh -J jump@HOST root@"):
        await sleepy.lifecycle.snapshot(box, None)
    assert await sleepy.backend.lives(box.id)


async def test_a_confidential_box_is_not_copied_while_it_sleeps_either(sleepy: World) -> None:
    box = await up(sleepy)
    await sleepy.lifecycle.snapshot(box, "s1")
    box = await sleepy.lifecycle.suspend(box)
    await sleepy.store.change_box(box.id, confidential=True)
    for copying in (
        sleepy.lifecycle.snapshot(box, None),
        sleepy.lifecycle.restore(box, "s1"),
        sleepy.lifecycle.fork(box, None, spec("child")),
    ):
        with pytest.raises(Conflict, match=r"is confidential.*ssh -J jump@HOST root@"):
            await copying
    assert list(await snapshots(sleepy)) == ["s1"]
    assert (await stored(sleepy)).state is BoxState.SUSPENDED


async def test_the_limit_of_snapshots_names_itself(tmp_path: Path) -> None:
    world = World(tmp_path, suspends=True, tier=lambda tier: replace(tier, snapshots=1))
    await world.start()
    try:
        box = await up(world)
        await world.lifecycle.snapshot(box, None)
        with pytest.raises(QuotaExceeded, match="1 snapshots per owner"):
            await world.lifecycle.snapshot(box, None)
        with pytest.raises(QuotaExceeded, match=r"1 snapshots per owner.*saves the current box"):
            await world.lifecycle.restore(box, "s1")
        await steady(world)
    finally:
        await world.close()


@pytest.mark.parametrize("step", ["tunnel.quiesce", "backend.freeze", "backend.snapshot"])
async def test_a_snapshot_that_fails_leaves_nothing_and_a_running_box(
    sleepy: World, step: str
) -> None:
    box = await up(sleepy)
    sleepy.fail_at(step)
    with pytest.raises(Failure, match=step):
        await sleepy.lifecycle.snapshot(box, None)
    sleepy.heal()
    assert await snapshots(sleepy) == {}
    await steady(sleepy)
    assert await up(sleepy) == box


async def test_a_box_that_cannot_be_thawed_goes_on_later(
    sleepy: World, assert_logs: AssertLogs
) -> None:
    box = await up(sleepy)
    sleepy.fail_at("backend.thaw")
    with assert_logs("trying again"):
        await sleepy.lifecycle.snapshot(box, None)
    assert not await sleepy.backend.lives(box.id)
    sleepy.heal()
    await sleepy.tick(timedelta(seconds=31))
    assert await sleepy.backend.lives(box.id)
    await steady(sleepy)


@pytest.mark.parametrize("end", ["", " done"])
@pytest.mark.parametrize("call", TAKE_CALLS)
async def test_a_daemon_that_dies_while_it_takes_a_snapshot(
    sleepy: World, call: str, end: str
) -> None:
    box = await up(sleepy)
    sleepy.life.end_at(call + end)
    with pytest.raises(Died):
        await sleepy.lifecycle.snapshot(box, None)
    await sleepy.crash()
    assert list(await snapshots(sleepy)) == (
        ["s1"] if call + end == TAKE_CALLS[-1] + " done" else []
    )
    await steady(sleepy)
    assert (await stored(sleepy)).state is BoxState.RUNNING
    assert (await up(sleepy)).id == box.id


async def test_restore_gives_a_box_its_state_back_and_keeps_what_it_was(sleepy: World) -> None:
    box = await up(sleepy)
    taken = await sleepy.lifecycle.snapshot(box, "good")
    restored = await sleepy.lifecycle.restore(box, "good")
    assert (restored.state, restored.memory) == (BoxState.SUSPENDED, True)
    assert restored.detail == "restored from snapshot good"
    assert set(await snapshots(sleepy)) == {"good", PRE_RESTORE}
    await steady(sleepy)
    config = sleepy.root / "boxes" / box.id / "run" / "config.json"
    assert config.exists()
    assert sleepy.steps.done.count("identity") == 2
    assert (await up(sleepy)).state is BoxState.RUNNING
    assert sleepy.backend.resumes(box.id) == 1
    assert (await snapshots(sleepy))["good"] == taken


async def test_a_restore_that_is_refused_leaves_a_box_running(tmp_path: Path) -> None:
    world = World(tmp_path, suspends=True, tier=lambda tier: replace(tier, snapshots=1))
    await world.start()
    try:
        box = await up(world)
        await world.lifecycle.snapshot(box, "good")
        with pytest.raises(QuotaExceeded, match="1 snapshots per owner"):
            await world.lifecycle.restore(box, "good")
        assert await world.backend.lives(box.id)
        await steady(world)
    finally:
        await world.close()


async def test_restore_twice_and_back(sleepy: World) -> None:
    box = await up(sleepy)
    await sleepy.lifecycle.snapshot(box, "good")
    await sleepy.lifecycle.restore(box, "good")
    first = (await snapshots(sleepy))[PRE_RESTORE]
    back = await sleepy.lifecycle.restore(box, PRE_RESTORE)
    assert back.detail == f"restored from snapshot {PRE_RESTORE}"
    assert (await snapshots(sleepy))[PRE_RESTORE].id != first.id
    await steady(sleepy)


async def test_a_snapshot_of_an_older_box_of_the_name_is_for_forks(sleepy: World) -> None:
    await sleepy.lifecycle.snapshot(await up(sleepy), "old")
    box = await up(sleepy, "web+")
    with pytest.raises(Conflict, match="snapshot fork web@old NAME"):
        await sleepy.lifecycle.restore(box, "old")
    await steady(sleepy)


@pytest.mark.parametrize("step", ["backend.snapshot", "backend.stop", "backend.restore_snapshot"])
async def test_a_restore_that_fails_leaves_the_box_as_it_was(
    sleepy: World, step: str, assert_logs: AssertLogs
) -> None:
    box = await up(sleepy)
    await sleepy.lifecycle.snapshot(box, "good")
    await sleepy.lifecycle.restore(box, "good")
    before = await up(sleepy)
    older = await snapshots(sleepy)
    sleepy.fail_at(step)
    if step == "backend.snapshot":
        with pytest.raises(Failure, match=step):
            await sleepy.lifecycle.restore(before, "good")
        assert (await snapshots(sleepy)).keys() == older.keys()
    else:
        with assert_logs("trying again"), pytest.raises(Failure, match=step):
            await sleepy.lifecycle.restore(before, "good")
    sleepy.heal()
    await sleepy.tick(timedelta(seconds=31))
    await steady(sleepy)
    assert (await up(sleepy)).id == box.id
    assert {"good", PRE_RESTORE} >= set(await snapshots(sleepy))


@pytest.mark.parametrize("end", ["", " done"])
@pytest.mark.parametrize(
    ("call", "asleep"),
    [
        ("backend.save_memory", False),
        ("backend.stop", False),
        ("backend.snapshot", False),
        ("backend.restore_snapshot", False),
        ("backend.restore_snapshot", True),
    ],
)
async def test_a_daemon_that_dies_while_it_restores(
    sleepy: World, call: str, end: str, *, asleep: bool
) -> None:
    box = await up(sleepy)
    await sleepy.lifecycle.snapshot(box, "good")
    if asleep:
        box = await sleepy.lifecycle.suspend(box)
    sleepy.life.end_at(call + end)
    with pytest.raises(Died):
        await sleepy.lifecycle.restore(box, "good")
    await sleepy.crash()
    await steady(sleepy)
    now = await stored(sleepy)
    if call == "backend.restore_snapshot":
        assert now.detail == "was not restored from a snapshot; it is unchanged"
    lives = call + end == "backend.save_memory"
    assert (now.state is BoxState.RUNNING, now.memory) == (lives, not lives)
    assert (await up(sleepy)).id == box.id


RESTORE_CALLS = (
    "store.rename_snapshot",
    "store.add_snapshot",
    "backend.snapshot",
    "store.finish_snapshot",
    "backend.restore_snapshot",
)


@pytest.mark.parametrize("end", ["", " done"])
@pytest.mark.parametrize("call", RESTORE_CALLS)
async def test_a_daemon_that_dies_while_it_restores_again_keeps_one_of_what_restores_keep(
    sleepy: World, call: str, end: str
) -> None:
    box = await up(sleepy)
    await sleepy.lifecycle.snapshot(box, "good")
    await sleepy.lifecycle.restore(box, "good")
    older = (await snapshots(sleepy))[PRE_RESTORE]
    sleepy.life.end_at(call + end)
    with pytest.raises(Died):
        await sleepy.lifecycle.restore(box, "good")
    await sleepy.crash()
    await steady(sleepy)
    told = await snapshots(sleepy)
    assert set(told) == {"good", PRE_RESTORE}
    replaced = call == "backend.restore_snapshot" or call + end == "store.finish_snapshot done"
    assert (told[PRE_RESTORE].id != older.id) is replaced
    assert (await up(sleepy)).id == box.id


@pytest.mark.parametrize("end", ["", " done"])
@pytest.mark.parametrize("call", RESTORE_CALLS)
async def test_a_daemon_that_dies_while_it_restores_what_a_restore_kept_loses_nothing(
    sleepy: World, call: str, end: str
) -> None:
    box = await up(sleepy)
    await sleepy.lifecycle.snapshot(box, "good")
    await sleepy.lifecycle.restore(box, "good")
    wanted = (await snapshots(sleepy))[PRE_RESTORE]
    sleepy.life.end_at(call + end)
    with pytest.raises(Died):
        await sleepy.lifecycle.restore(box, PRE_RESTORE)
    await sleepy.crash()
    await steady(sleepy)
    names = {one.id: one.name for one in (await snapshots(sleepy)).values()}
    both = call == "backend.restore_snapshot" or call + end == "store.finish_snapshot done"
    assert names[wanted.id] == (f"{PRE_RESTORE}-2" if both else PRE_RESTORE)
    restored = await sleepy.lifecycle.restore(box, names[wanted.id])
    assert restored.detail == f"restored from snapshot {names[wanted.id]}"
    await steady(sleepy)
    assert (await up(sleepy)).id == box.id


async def test_a_restore_that_fails_keeps_what_was_wanted(
    sleepy: World, assert_logs: AssertLogs
) -> None:
    box = await up(sleepy)
    await sleepy.lifecycle.snapshot(box, "good")
    await sleepy.lifecycle.restore(box, "good")
    wanted = (await snapshots(sleepy))[PRE_RESTORE]
    sleepy.fail_at("backend.restore_snapshot")
    with assert_logs("trying again"), pytest.raises(Failure):
        await sleepy.lifecycle.restore(box, PRE_RESTORE)
    sleepy.heal()
    await sleepy.tick(timedelta(seconds=31))
    await steady(sleepy)
    assert (await snapshots(sleepy))[f"{PRE_RESTORE}-2"].id == wanted.id
    await sleepy.lifecycle.restore(box, f"{PRE_RESTORE}-2")
    await steady(sleepy)


async def test_a_restore_at_the_limit_replaces_what_the_last_one_kept(tmp_path: Path) -> None:
    world = World(tmp_path, suspends=True, tier=lambda tier: replace(tier, snapshots=2))
    await world.start()
    try:
        box = await up(world)
        await world.lifecycle.snapshot(box, "good")
        for _ in range(2):
            await world.lifecycle.restore(box, "good")
        assert set(await snapshots(world)) == {"good", PRE_RESTORE}
        await steady(world)
    finally:
        await world.close()


async def test_a_snapshot_outlives_its_box_and_goes_when_told(sleepy: World) -> None:
    box = await up(sleepy)
    taken = await sleepy.lifecycle.snapshot(box, None)
    await sleepy.lifecycle.remove(box)
    await sleepy.restart()
    assert await snapshots(sleepy) == {"s1": taken}
    assert await sleepy.backend.snapshots() == (taken.id,)
    await sleepy.lifecycle.snapshots.remove(taken)
    assert await sleepy.left_overs() == {}


async def test_a_snapshot_that_does_not_go_from_the_host_goes_at_the_next_start(
    sleepy: World, assert_logs: AssertLogs
) -> None:
    box = await up(sleepy)
    taken = await sleepy.lifecycle.snapshot(box, None)
    await sleepy.lifecycle.remove(box)
    sleepy.fail_at("backend.drop_snapshot")
    with assert_logs("cannot remove a snapshot from the host"):
        await sleepy.lifecycle.snapshots.remove(taken)
    sleepy.heal()
    await sleepy.restart()
    assert await sleepy.left_overs() == {}


async def test_snapshots_are_told_apart_by_workspace(sleepy: World) -> None:
    one = await up(sleepy)
    other = await sleepy.lifecycle.up(BoxRequest(OWNER, "ws1", parse_spec("ws1/web")))
    await sleepy.lifecycle.snapshot(one, "same")
    await sleepy.lifecycle.snapshot(other, "same")
    find = sleepy.lifecycle.snapshots.find
    assert (await find(OWNER, None, "web", "same")).box_id == one.id
    assert (await find(OWNER, "ws1", "web", "same")).box_id == other.id
    with pytest.raises(NotFound, match="no snapshot 'same' of box 'db'"):
        await find(OWNER, None, "db", "same")
