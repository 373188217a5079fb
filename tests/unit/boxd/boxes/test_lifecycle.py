"""Life of boxes on fakes: creation, waking, removal, holds, deadlines."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from boxd.boxes import timers
from boxd.errors import (
    BadRequest,
    Conflict,
    InvalidKey,
    NotFound,
    QuotaExceeded,
    Unavailable,
    UnknownImage,
)
from boxd.model.box import BoxState
from boxd.names.spec import parse_spec
from tests.harness.world import ALICE, CREATE_STEPS, Failure, World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from boxd.model.box import Box
    from boxd.names.spec import BoxSpec
    from tests.plugins.strict_logs import AssertLogs

OWNER = ALICE.owner


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A started core on fakes."""
    made = World(tmp_path)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


def spec(text: str) -> BoxSpec:
    """A parsed spec."""
    return parse_spec(text, {"small", "large"}, allow_anonymous=True)


async def up(world: World, text: str = "web") -> Box:
    """The box of a spec, running."""
    wanted = spec(text)
    return await world.lifecycle.up(OWNER, wanted.workspace, wanted)


async def until(condition: Callable[[], bool]) -> None:
    """Lets other tasks run until the condition holds; at most 10 s."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  the condition is any state of a fake
            await asyncio.sleep(0.001)


async def rows(world: World) -> list[Box]:
    """All boxes as stored."""
    return await world.store.all_boxes()


async def test_first_connect_creates_a_running_box_with_its_drive(world: World) -> None:
    box = await up(world, "ws1/web:debian:large^2h+10m")
    assert await rows(world) == [box]
    assert (box.state, box.flavor, box.cpus, box.mem_mb) == (BoxState.RUNNING, "large", 4.0, 4096)
    assert (box.workspace, box.name, box.image) == ("ws1", "web", "debian")
    assert box.deadline == world.clock.now() + timedelta(hours=2)
    assert box.grace == timedelta(minutes=10)
    assert world.drives.attached == {box.id}
    assert len(box.id) == 32


async def test_tunnel_listens_before_the_box_starts(world: World) -> None:
    await up(world)
    done = world.steps.done
    assert done.index("tunnel.open") < done.index("backend.start") < done.index("tunnel.hello")
    assert done.index("tunnel.hello") < done.index("drive.attach")


async def test_secrets_of_the_box_are_private_files(world: World) -> None:
    box = await up(world)
    run_dir = world.root / "boxes" / box.id / "run"
    assert run_dir.stat().st_mode & 0o077 == 0
    assert (run_dir / "host_key").read_bytes() == b"PRIVATE"
    assert {file.stat().st_mode & 0o777 for file in run_dir.iterdir()} == {0o600}


async def test_concurrent_connects_make_one_box(world: World) -> None:
    boxes = await asyncio.gather(*(up(world) for _ in range(50)))
    assert len({box.id for box in boxes}) == 1
    assert world.steps.done.count("backend.create") == 1


async def test_connects_wait_while_another_one_creates(world: World) -> None:
    world.steps.held["tunnel.hello"] = asyncio.Event()
    first, second = asyncio.create_task(up(world)), asyncio.create_task(up(world))
    await until(lambda: "tunnel.hello" in world.steps.done)
    assert [box.state for box in await rows(world)] == [BoxState.CREATING]
    assert not first.done()
    assert not second.done()
    world.steps.held["tunnel.hello"].set()
    assert (await first).id == (await second).id


@pytest.mark.parametrize("step", CREATE_STEPS)
async def test_create_that_fails_leaves_nothing(world: World, step: str) -> None:
    world.fail_at(step)
    with pytest.raises(Failure, match=step):
        await up(world)
    assert await world.left_overs() == {}
    world.heal()
    assert (await up(world)).state is BoxState.RUNNING


@pytest.mark.parametrize("step", CREATE_STEPS)
async def test_create_that_breaks_unexpectedly_leaves_nothing(world: World, step: str) -> None:
    world.fail_at(step, RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        await up(world)
    assert await world.left_overs() == {}


@pytest.mark.parametrize("step", [step for step in CREATE_STEPS if step != "identity"])
async def test_daemon_killed_at_a_step_of_create_leaves_nothing(world: World, step: str) -> None:
    world.steps.held[step] = asyncio.Event()
    dead = world.lifecycle
    task = asyncio.create_task(up(world))
    await until(lambda: step in world.steps.done)
    world._make_daemon()
    await world.start()
    assert await world.left_overs() == {}
    world.steps.held[step].set()
    with pytest.raises((NotFound, Unavailable)):
        await task
    await dead.close(stop_boxes=False)
    assert await world.left_overs() == {}


async def test_caller_who_goes_away_leaves_a_whole_box(world: World) -> None:
    world.steps.held["tunnel.hello"] = asyncio.Event()
    task = asyncio.create_task(up(world))
    await until(lambda: "tunnel.hello" in world.steps.done)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    world.steps.held["tunnel.hello"].set()
    assert (await up(world)).state is BoxState.RUNNING
    assert world.steps.done.count("backend.create") == 1


async def test_unknown_image_and_flavor_leave_nothing(world: World) -> None:
    with pytest.raises(UnknownImage, match="known: debian"):
        await up(world, "web:nope")
    with pytest.raises(Unavailable, match="boxd images build unbuilt"):
        await up(world, "web:unbuilt")
    with pytest.raises(UnknownImage, match="small, large"):
        await world.lifecycle.up(OWNER, None, replace(spec("web:debian"), flavor="huge"))
    assert await world.left_overs() == {}


async def test_removal_leaves_nothing(world: World) -> None:
    box = await up(world)
    await world.lifecycle.remove(box)
    await world.lifecycle.remove(box)
    assert await world.left_overs() == {}


async def test_removal_that_fails_on_the_host_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch, assert_logs: AssertLogs
) -> None:
    monkeypatch.setattr(timers, "TICK", 0.001)
    await world.restart()
    box = await up(world)
    world.fail_at("backend.destroy")
    with assert_logs("trying again"):
        await world.lifecycle.remove(box)
    assert await rows(world) == []
    world.heal()
    world.clock.turn(timedelta(minutes=1))
    await until(lambda: not world.lifecycle._timers.doomed)
    assert await world.left_overs() == {}


async def test_fresh_spec_replaces_the_box_and_says_so(world: World) -> None:
    old = await up(world)
    said: list[str] = []
    new = await world.lifecycle.up(OWNER, None, spec("web+"), notes=said.append)
    assert new.id != old.id
    assert [box.id for box in await rows(world)] == [new.id]
    assert said == [f"removed the old box web ({old.id[:12]})"]


async def test_what_an_existing_box_cannot_change_is_noted(world: World) -> None:
    old = await up(world, "web+5m")
    said: list[str] = []
    wanted = spec("web:other:large^1h+7m")
    new = await world.lifecycle.up(OWNER, None, wanted, notes=said.append)
    assert (new.id, new.image, new.flavor, new.deadline) == (old.id, "debian", "small", None)
    assert (await rows(world))[0].grace == timedelta(minutes=7)
    assert len(said) == 1
    for word in ("image other", "flavor large", "^1h", "web+"):
        assert word in said[0]


async def test_same_image_is_not_noted(world: World) -> None:
    await up(world)
    said: list[str] = []
    await world.lifecycle.up(OWNER, None, spec("web:debian"), notes=said.append)
    assert said == []


async def test_deadline_is_clamped_to_the_tier(world: World) -> None:
    box = await up(world, "web^3650d")
    assert box.deadline == world.clock.now() + world.tier.deadline_max


async def test_deadline_removes_whatever_holds_the_box(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers, "TICK", 0.001)
    await world.restart()
    async with world.lifecycle.attach(OWNER, None, spec("web^1h"), why="session", key_id=None):
        world.clock.turn(timedelta(minutes=59))
        await asyncio.sleep(0.01)
        assert len(await rows(world)) == 1
        world.clock.turn(timedelta(minutes=2))
        await until(lambda: "backend.destroy" in world.steps.done)
        await world.lifecycle.close(stop_boxes=False)
    assert await world.left_overs() == {}


async def test_dead_box_starts_again_from_its_disk(world: World) -> None:
    box = await up(world)
    await world.backend.stop(box.id)
    again = await up(world)
    assert (again.id, again.state) == (box.id, BoxState.RUNNING)
    assert await world.backend.lives(box.id)
    assert world.steps.done.count("backend.create") == 1


async def test_start_that_fails_can_be_tried_again(world: World) -> None:
    box = await up(world)
    await world.lifecycle.close(stop_boxes=True)
    await world.restart()
    world.fail_at("tunnel.hello")
    with pytest.raises(Failure):
        await up(world)
    [stored] = await rows(world)
    assert stored.state is BoxState.SUSPENDED
    assert "did not start: tunnel.hello failed" in stored.detail
    assert not await world.backend.lives(box.id)
    world.heal()
    assert (await up(world)).id == box.id


async def test_wake_of_a_removed_box_is_not_found(world: World) -> None:
    box = await up(world)
    await world.lifecycle.remove(box)
    with pytest.raises(NotFound):
        await world.lifecycle.wake(box)


async def test_anonymous_boxes_differ_and_go_with_their_last_holder(world: World) -> None:
    async with AsyncExitStack() as stack:
        boxes = [
            (
                await stack.enter_async_context(
                    world.lifecycle.attach(OWNER, None, spec("_"), why="session", key_id=None)
                )
            ).box
            for _ in range(2)
        ]
        assert len({box.name for box in boxes}) == 2
        second = await stack.enter_async_context(
            world.lifecycle.attach_existing(boxes[0], why="exec", key_id=None)
        )
        assert second.box.id == boxes[0].id
    await world.close()
    assert await world.left_overs() == {}


async def test_abandoned_anonymous_box_goes_too(world: World) -> None:
    world.steps.held["tunnel.hello"] = asyncio.Event()

    async def visit() -> None:
        async with world.lifecycle.attach(OWNER, None, spec("_"), why="session", key_id=None):
            raise AssertionError("never entered")

    task = asyncio.create_task(visit())
    await until(lambda: "tunnel.hello" in world.steps.done)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    world.steps.held["tunnel.hello"].set()
    await world.close()
    assert await world.left_overs() == {}


async def test_holds_are_counted_by_reason(world: World) -> None:
    attach = world.lifecycle.attach
    async with attach(OWNER, None, spec("web"), why="session", key_id=None) as one:
        async with attach(OWNER, None, spec("web"), why="exec", key_id=None):
            assert world.lifecycle.attachments.why(one.box.id) == {"exec": 1, "session": 1}
        assert world.lifecycle.attachments.why(one.box.id) == {"session": 1}
    assert world.lifecycle.attachments.count(one.box.id) == 0


async def test_revoked_key_ends_what_it_holds(world: World) -> None:
    entered = asyncio.Event()

    async def visit(key_id: str | None) -> None:
        async with world.lifecycle.attach(OWNER, None, spec("web"), why="exec", key_id=key_id):
            entered.set()
            await asyncio.Event().wait()

    revoked, other = asyncio.create_task(visit("k1")), asyncio.create_task(visit("k2"))
    await entered.wait()
    await until(lambda: sum(len(h) for h in world.lifecycle.attachments._holds.values()) == 2)
    await asyncio.sleep(0)
    assert world.lifecycle.attachments.end_key("k1") == 1
    with pytest.raises(InvalidKey):
        await revoked
    assert not other.done()
    other.cancel()
    with pytest.raises(asyncio.CancelledError):
        await other


async def test_quota_names_limit_and_value(tmp_path: Path) -> None:
    world = World(tmp_path, tier=lambda tier: replace(tier, boxes=2))
    await world.start()
    try:
        results = await asyncio.gather(
            *(up(world, f"box{n}") for n in range(5)), return_exceptions=True
        )
        refused = [one for one in results if isinstance(one, QuotaExceeded)]
        assert len(refused) == 3
        assert "2 boxes per owner" in str(refused[0])
        assert len(await rows(world)) == 2
    finally:
        await world.close()


@pytest.mark.parametrize(
    ("limit", "text"),
    [("running", "1 running"), ("cpus", "1 CPUs"), ("mem_mb", "512 MiB")],
)
async def test_running_limits(tmp_path: Path, limit: str, text: str) -> None:
    values: dict[str, Any] = {"running": 1, "cpus": 1.0, "mem_mb": 512}
    world = World(tmp_path, tier=lambda tier: replace(tier, **{limit: values[limit]}))
    await world.start()
    try:
        await up(world, "one")
        with pytest.raises(QuotaExceeded, match=text):
            await up(world, "two")
        await world.lifecycle.close(stop_boxes=True)
        await world.restart()
        await up(world, "two")
        with pytest.raises(QuotaExceeded, match=text):
            await up(world, "one")
        assert {box.state for box in await rows(world)} == {BoxState.RUNNING, BoxState.SUSPENDED}
    finally:
        await world.close()


async def test_workspace_requests_of_the_agent(tmp_path: Path) -> None:
    world = World(tmp_path, automount=False)
    await world.start()
    try:
        box = await up(world)
        request = world.lifecycle.workspace_request
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
            await world.lifecycle.workspace_request(box.id, "mount")
        assert [box.drive for box in await rows(world)] == [False]
    finally:
        await world.close()
