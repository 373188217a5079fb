"""Changes of one box on fakes: each step of making and starting it, and of its failing."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from boxd.boxes.lifecycle import changes
from boxd.boxes.lifecycle.holds import AttachRequest
from boxd.boxes.limits.host import HostLimits
from boxd.boxes.state.requests import BoxAccess, BoxRequest
from boxd.boxes.timing import timers
from boxd.errors import Conflict, NotFound, QuotaExceeded, Unavailable, UnknownImage
from boxd.model.box import BoxState
from boxd.model.profile import Profile, ProfileDefaults
from boxd.model.progress import Progress
from boxd.principal import Principal
from tests.harness.simulation.world import CREATE_STEPS, Failure, World
from tests.harness.wait import until
from tests.unit.boxd.boxes.life import OWNER, rows, spec, up

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.model.box import Box
    from tests.plugins.strict_logs import AssertLogs


async def test_first_connect_creates_a_running_box_with_its_drive(world: World) -> None:
    box = await up(world, "ws1/web:debian:large^2h+10m")
    assert await rows(world) == [box]
    assert (box.state, box.flavor, box.cpus, box.mem_mb) == (BoxState.RUNNING, "large", 4.0, 4096)
    assert (box.workspace, box.name, box.image) == ("ws1", "web", "debian")
    assert box.deadline == world.clock.now() + timedelta(hours=2)
    assert box.grace == timedelta(minutes=10)
    assert world.drives.attached == {box.id}
    assert len(box.id) == 32


@pytest.mark.parametrize("asleep", [False, True])
async def test_a_terminal_in_a_box_without_a_drive_gets_it_none(
    tmp_path: Path, asleep: bool
) -> None:
    world = World(tmp_path, automount=False, suspends=True)
    await world.start()
    box = await up(world)
    if asleep:
        box = await world.lifecycle.suspend(box)
    owner = Principal(OWNER, None, "ssh_key")
    attach = world.operations.boxes.attach(
        owner, BoxAccess("web", kind="reference", why="terminal")
    )
    async with attach as held:
        assert held.box.drive is False
        assert await rows(world) == [held.box]
    assert world.drives.attached == set()
    assert not [step for step in world.steps.done if step.startswith("drive.")]
    await world.close(stop_boxes=True)


async def test_tunnel_listens_before_the_box_starts(world: World) -> None:
    await up(world)
    done = world.steps.done
    assert done.index("tunnel.open") < done.index("backend.start") < done.index("tunnel.hello")
    assert done.index("backend.start") < done.index("drive.attach")


async def test_secrets_of_the_box_are_private_files(world: World) -> None:
    box = await up(world)
    run_dir = world.root / "boxes" / box.id / "run"
    assert run_dir.stat().st_mode & 0o077 == 0
    assert (run_dir / "host_key").read_bytes() == b"PRIVATE"
    assert {file.stat().st_mode & 0o777 for file in run_dir.iterdir()} == {0o600}


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


async def test_unknown_image_and_flavor_leave_nothing(world: World) -> None:
    with pytest.raises(UnknownImage, match="known: debian"):
        await up(world, "web:nope")
    with pytest.raises(Unavailable, match="boxd images build unbuilt"):
        await up(world, "web:unbuilt")
    with pytest.raises(UnknownImage, match="small, large"):
        await world.lifecycle.up(
            BoxRequest(OWNER, None, replace(spec("web:debian"), flavor="huge"))
        )
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
    await until(lambda: not world.lifecycle._timers._half_removed)
    assert await world.left_overs() == {}


async def test_another_image_or_flavor_changes_nothing(world: World) -> None:
    await up(world, "web+5m")
    before = await rows(world)
    for text in ("web:other+7m", "web:debian:large+7m"):
        with pytest.raises(Conflict, match="box web exists"):
            await world.lifecycle.up(BoxRequest(OWNER, None, spec(text)))
    assert await rows(world) == before


async def test_what_an_existing_box_cannot_change_is_noted(world: World) -> None:
    old = await up(world, "web+5m")
    said: list[str] = []
    wanted = spec("web:debian:small^1h+7m")
    new = await world.lifecycle.up(BoxRequest(OWNER, None, wanted), Progress(said.append))
    assert (new.id, new.image, new.flavor, new.deadline) == (old.id, "debian", "small", None)
    assert (await rows(world))[0].grace == timedelta(minutes=7)
    assert len(said) == 1
    for word in ("^1h", "web+"):
        assert word in said[0]


async def test_same_image_is_not_noted(world: World) -> None:
    await up(world)
    said: list[str] = []
    await world.lifecycle.up(BoxRequest(OWNER, None, spec("web:debian")), Progress(said.append))
    assert said == []


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


REFUSED_FRESH = ("web+:pyton", "web+:unbuilt", "web+:prof", "web+:gone", "web+:debian:large")


@pytest.mark.parametrize("text", REFUSED_FRESH)
async def test_a_fresh_box_that_is_refused_leaves_the_old_one(tmp_path: Path, text: str) -> None:
    world = World(tmp_path, tier=lambda tier: replace(tier, mem_mb=1024))
    await world.start()
    try:
        for name, flavor in (("prof", "left"), ("gone", None)):
            image = "debian" if flavor else "left"
            await world.store.put_profile(OWNER, Profile(name, image, ProfileDefaults(flavor)))
        old = await up(world)
        async with world.lifecycle.attach(
            AttachRequest(BoxRequest(OWNER, None, spec("web")), why="shell", key_id=None)
        ) as held:
            with pytest.raises((UnknownImage, Unavailable, QuotaExceeded)):
                await up(world, text)
            assert held.hold.loss == ""
        assert await rows(world) == [old]
        assert await world.backend.lives(old.id)
    finally:
        await world.close()


async def test_a_fresh_box_takes_the_room_of_the_old_one(tmp_path: Path) -> None:
    host = HostLimits(tmp_path, running=1, mem_mb=512, free_mb=0)
    world = World(tmp_path, host=host, tier=lambda tier: replace(tier, boxes=1, running=1))
    await world.start()
    try:
        old = await up(world)
        fresh = await up(world, "web+")
        assert fresh.id != old.id
        assert await rows(world) == [fresh]
        admission = world.lifecycle._changes._admission
        admission._limits = replace(admission._limits, host=replace(host, free_mb=10**9))
        with pytest.raises(Unavailable, match="disk space"):
            await up(world, "web+")
        assert await rows(world) == [fresh]
    finally:
        await world.close()


async def test_a_fresh_box_that_fails_on_the_host_tells_that_the_old_one_is_gone(
    world: World,
) -> None:
    old = await up(world)
    world.fail_at("backend.start")
    said: list[str] = []
    with pytest.raises(Failure):
        await world.lifecycle.up(BoxRequest(OWNER, None, spec("web+")), Progress(said.append))
    assert said == [f"removed the old box web ({old.id[:12]})"]
    assert await world.left_overs() == {}


async def test_box_that_the_host_lost_starts_anew(world: World, assert_logs: AssertLogs) -> None:
    old = await asleep_and_lost(world)
    with assert_logs("disk of the box was lost"):
        new = await up(world)
    assert (new.id, new.state, new.detail) == (old.id, BoxState.RUNNING, changes.REMADE)
    assert world.steps.done.count("identity") == 2
    assert await rows(world) == [new]
    assert world.steps.done.count("backend.create") == 2


async def test_lost_box_that_cannot_be_made_stays_asleep_and_lost(
    world: World, assert_logs: AssertLogs
) -> None:
    old = await asleep_and_lost(world)
    world.fail_at("backend.create")
    for _ in range(2):
        with pytest.raises(Failure, match=r"backend\.create"):
            await up(world)
        (row,) = await rows(world)
        assert (row.id, row.state) == (old.id, BoxState.SUSPENDED)
    world.heal()
    with assert_logs("disk of the box was lost"):
        assert (await up(world)).detail == changes.REMADE


async def asleep_and_lost(world: World) -> Box:
    """A box that was stopped, and then its host was lost."""
    box = await up(world)
    await world.lifecycle.close(stop_boxes=True)
    await world.backend.destroy(box.id)
    shutil.rmtree(world.root / "boxes" / box.id)
    await world.restart()
    return box


async def test_host_limits_bind_all_owners_together(tmp_path: Path) -> None:
    world = World(tmp_path, host=HostLimits(tmp_path, running=2, mem_mb=10**6, free_mb=0))
    await world.start()
    try:
        owners = ("SHA256:a", "SHA256:b", "SHA256:c")
        results = await asyncio.gather(
            *(world.lifecycle.up(BoxRequest(owner, None, spec("web"))) for owner in owners),
            return_exceptions=True,
        )
        [refused] = [one for one in results if isinstance(one, Exception)]
        assert isinstance(refused, Unavailable)
        assert "limit reached: 2 running boxes on this host" in str(refused)
        assert len(await rows(world)) == 2
    finally:
        await world.close()


async def test_a_sleeping_box_is_not_woken_beyond_the_hosts_limits(tmp_path: Path) -> None:
    world = World(tmp_path, host=HostLimits(tmp_path, running=1, mem_mb=10**6, free_mb=0))
    await world.start()
    try:
        await up(world, "one")
        await world.lifecycle.close(stop_boxes=True)
        await world.restart()
        await up(world, "two")
        with pytest.raises(Unavailable, match="limit reached: 1 running boxes on this host"):
            await up(world, "one")
        assert {box.state for box in await rows(world)} == {BoxState.RUNNING, BoxState.SUSPENDED}
    finally:
        await world.close()


async def test_a_box_gets_the_disk_of_its_owners_tier(world: World) -> None:
    assert (await up(world)).disk_mb == world.tier.disk_mb
