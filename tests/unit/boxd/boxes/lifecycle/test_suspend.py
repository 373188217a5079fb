"""Suspension and resume on fakes: each step, its failing, and the daemon's death at it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.lifecycle import assembly
from boxd.boxes.lifecycle.adoption import SLEEPS, STARTED_AGAIN, STOPPED
from boxd.boxes.lifecycle.holds import AttachRequest
from boxd.boxes.lifecycle.suspend import DIED
from boxd.boxes.state.requests import BoxRequest
from boxd.errors import (
    Conflict,
    DiskFull,
    MemoryLost,
    NotFound,
    RootHeld,
    Unavailable,
    Unsupported,
)
from boxd.model.box import BoxState
from tests.harness.service.mortal import Died
from tests.harness.wait import until
from tests.unit.boxd.boxes.life import OWNER, rows, spec, up

if TYPE_CHECKING:
    from boxd.model.box import Box
    from tests.harness.simulation.world import World
    from tests.plugins.strict_logs import AssertLogs

SUSPEND_CALLS = ("tunnel.quiesce", "backend.freeze", "backend.save_memory", "backend.stop")
RESUME_CALLS = ("tunnel.open", "drive.prepare", "backend.resume", "tunnel.get")


async def asleep(world: World, text: str = "web") -> Box:
    """A box that sleeps with its memory."""
    return await world.lifecycle.suspend(await up(world, text))


async def stored(world: World) -> Box:
    """The only box."""
    [box] = await rows(world)
    return box


async def test_a_box_sleeps_with_its_memory_and_wakes_from_it(sleepy: World) -> None:
    box = await asleep(sleepy)
    assert (box.state, box.memory, box.step, box.detail) == (BoxState.SUSPENDED, True, 0, "")
    assert await rows(sleepy) == [box]
    found = await sleepy.backend.look(box.id)
    assert found is not None
    assert (found.running, found.memory) == (False, True)
    assert (sleepy.tunnels.open_for, sleepy.drives.attached) == (set(), set())
    woken = await up(sleepy)
    assert (woken.id, woken.state, woken.memory) == (box.id, BoxState.RUNNING, False)
    assert sleepy.backend.resumes(box.id) == 1
    assert sleepy.steps.done.count("backend.start") == 1
    assert sleepy.drives.attached == {box.id}
    assert sleepy.backend.drive(box.id) is not None


def _repeated(world: World, step: str, seen: int) -> bool:
    return world.steps.done.count(step) > seen


async def test_steps_come_in_order(sleepy: World) -> None:
    await asleep(sleepy)
    done = [step for step in sleepy.life.steps if step in SUSPEND_CALLS]
    assert done == list(SUSPEND_CALLS)
    before = len(sleepy.life.steps)
    await up(sleepy)
    done = [step for step in sleepy.life.steps[before:] if step in RESUME_CALLS]
    assert done == list(RESUME_CALLS)


async def test_suspend_and_resume_of_what_is_so_already(sleepy: World) -> None:
    box = await asleep(sleepy)
    assert await sleepy.lifecycle.suspend(box) == box
    woken = await sleepy.lifecycle.wake(box)
    assert await sleepy.lifecycle.wake(woken) == woken
    assert sleepy.backend.resumes(box.id) == 1


async def test_a_box_in_use_is_not_suspended_and_says_by_whom(sleepy: World) -> None:
    attach = sleepy.lifecycle.attach
    async with (
        attach(
            AttachRequest(BoxRequest(OWNER, None, spec("web")), why="shell", key_id=None)
        ) as held,
        attach(AttachRequest(BoxRequest(OWNER, None, spec("web")), why="shell", key_id=None)),
        attach(AttachRequest(BoxRequest(OWNER, None, spec("web")), why="exec", key_id=None)),
    ):
        with pytest.raises(Conflict, match=r"1 exec, 2 shell"):
            await sleepy.lifecycle.suspend(held.box)
        assert (await stored(sleepy)).state is BoxState.RUNNING
        assert "backend.freeze" not in sleepy.steps.done
    assert (await sleepy.lifecycle.suspend(held.box)).state is BoxState.SUSPENDED


async def test_a_confidential_box_is_not_suspended(sleepy: World) -> None:
    box = await up(sleepy)
    await sleepy.store.change_box(box.id, confidential=True)
    words = r"not supported.*is confidential.*ssh -J jump@HOST root@web"
    with pytest.raises(Unsupported, match=words) as refusal:
        await sleepy.lifecycle.suspend(box)
    assert refusal.value.http_status == 400
    assert await sleepy.backend.lives(box.id)


async def test_suspend_of_a_removed_box_is_not_found(sleepy: World) -> None:
    box = await up(sleepy)
    await sleepy.lifecycle.remove(box)
    with pytest.raises(NotFound):
        await sleepy.lifecycle.suspend(box)


async def test_a_host_that_cannot_says_why(world: World) -> None:
    box = await up(world)
    with pytest.raises(Unsupported, match="this backend cannot suspend boxes"):
        await world.lifecycle.suspend(box)
    assert await world.backend.lives(box.id)


async def test_a_connect_during_a_suspension_waits_and_wakes_the_box(sleepy: World) -> None:
    box = await up(sleepy)
    for step in ("tunnel.quiesce", "backend.save_memory", "backend.stop"):
        sleepy.steps.held[step] = asyncio.Event()
        seen = sleepy.steps.done.count(step)
        suspension = asyncio.create_task(sleepy.lifecycle.suspend(box))
        await until(partial(_repeated, sleepy, step, seen))
        connect = asyncio.create_task(up(sleepy))
        await asyncio.sleep(0)
        assert not connect.done()
        sleepy.steps.held.pop(step).set()
        assert (await suspension).state is BoxState.SUSPENDED
        assert (await connect).state is BoxState.RUNNING
    assert sleepy.backend.resumes(box.id) == 3


async def test_connects_during_a_resume_share_it(sleepy: World) -> None:
    box = await asleep(sleepy)
    woken = await asyncio.gather(*(up(sleepy) for _ in range(10)))
    assert {one.id for one in woken} == {box.id}
    assert sleepy.backend.resumes(box.id) == 1


@pytest.mark.parametrize("step", ["tunnel.quiesce", "backend.freeze", "backend.save_memory"])
async def test_a_step_of_suspend_that_fails_leaves_the_box_running(
    sleepy: World, step: str
) -> None:
    box = await up(sleepy)
    sleepy.fail_at(step)
    with pytest.raises(Conflict, match=f"box web could not be suspended: {step} failed"):
        await sleepy.lifecycle.suspend(box)
    now = await stored(sleepy)
    assert (now.state, now.step, now.memory) == (BoxState.RUNNING, 0, False)
    assert now.detail == f"could not be suspended: {step} failed"
    assert await sleepy.backend.lives(box.id)
    assert sleepy.tunnels.open_for == {box.id}
    sleepy.heal()
    assert await up(sleepy) == now
    assert (await sleepy.lifecycle.suspend(box)).detail == ""


async def test_an_error_of_the_system_is_told_as_any_other(sleepy: World) -> None:
    box = await up(sleepy)
    sleepy.fail_at("backend.save_memory", OSError(5, "Input/output error"))
    with pytest.raises(Conflict, match=r"could not be suspended:.*Input/output error"):
        await sleepy.lifecycle.suspend(box)
    assert await sleepy.backend.lives(box.id)


async def test_a_full_disk_keeps_its_kind_of_error(sleepy: World) -> None:
    box = await up(sleepy)
    sleepy.fail_at("backend.save_memory", DiskFull("4 MiB are left"))
    with pytest.raises(DiskFull, match="box web could not be suspended: 4 MiB are left"):
        await sleepy.lifecycle.suspend(box)


async def test_a_box_whose_processes_do_not_end_sleeps_when_they_do(
    sleepy: World, assert_logs: AssertLogs
) -> None:
    box = await up(sleepy)
    sleepy.fail_at("backend.stop")
    with assert_logs("trying again"), pytest.raises(Unavailable, match=r"backend\.stop failed"):
        await sleepy.lifecycle.suspend(box)
    now = await stored(sleepy)
    assert (now.state, now.memory) == (BoxState.SUSPENDING, True)
    assert not await sleepy.backend.lives(box.id)
    sleepy.heal()
    assert (await up(sleepy)).state is BoxState.RUNNING
    assert sleepy.backend.resumes(box.id) == 1


@pytest.mark.parametrize("end", ["", " done"])
@pytest.mark.parametrize("call", SUSPEND_CALLS)
async def test_a_daemon_that_dies_in_a_suspension(sleepy: World, call: str, end: str) -> None:
    box = await up(sleepy)
    sleepy.life.end_at(call + end)
    with pytest.raises(Died):
        await sleepy.lifecycle.suspend(box)
    await sleepy.crash()
    now = await stored(sleepy)
    saved = (call + end) in ("backend.save_memory done", "backend.stop", "backend.stop done")
    assert now.state is (BoxState.SUSPENDED if saved else BoxState.RUNNING)
    assert (now.memory, now.step, now.detail) == (saved, 0, "")
    found = await sleepy.backend.look(box.id)
    assert found is not None
    assert (found.running, found.memory, found.frozen) == (not saved, saved, False)
    assert sleepy.tunnels.open_for == (set() if saved else {box.id})
    assert (await up(sleepy)).id == box.id
    assert sleepy.backend.resumes(box.id) == int(saved)
    assert sleepy.steps.done.count("backend.start") == 1


@pytest.mark.parametrize("end", ["", " done"])
@pytest.mark.parametrize("call", RESUME_CALLS)
async def test_a_daemon_that_dies_in_a_resume(sleepy: World, call: str, end: str) -> None:
    box = await asleep(sleepy)
    sleepy.life.end_at(call + end)
    with pytest.raises(Died):
        await up(sleepy)
    await sleepy.crash()
    now = await stored(sleepy)
    used = (call + end) in ("backend.resume done", "tunnel.get", "tunnel.get done")
    assert now.state is (BoxState.RUNNING if used else BoxState.SUSPENDED)
    assert now.memory is not used
    assert (await up(sleepy)).state is BoxState.RUNNING
    assert sleepy.backend.resumes(box.id) == 1
    assert sleepy.steps.done.count("backend.start") == 1


@pytest.mark.parametrize("step", ["tunnel.open", "drive.prepare", "backend.resume"])
async def test_a_resume_that_fails_keeps_the_memory(sleepy: World, step: str) -> None:
    box = await asleep(sleepy)
    sleepy.fail_at(step)
    with pytest.raises(Unavailable, match=f"{step} failed"):
        await up(sleepy)
    now = await stored(sleepy)
    assert (now.state, now.memory) == (BoxState.SUSPENDED, True)
    assert now.detail == f"did not start: {step} failed"
    sleepy.heal()
    assert (await up(sleepy)).detail == ""
    assert sleepy.backend.resumes(box.id) == 1


async def test_lost_memory_is_a_start_from_disk_that_is_told(
    sleepy: World, assert_logs: AssertLogs
) -> None:
    box = await asleep(sleepy)
    sleepy.backend.lost.add(box.id)
    with assert_logs("starts from its disk"):
        woken = await up(sleepy)
    assert woken.state is BoxState.RUNNING
    assert woken.detail == "started from its disk: its memory cannot be brought back"
    assert (await stored(sleepy)) == woken
    assert sleepy.steps.done.count("backend.start") == 2
    assert (await sleepy.lifecycle.suspend(woken)).detail == ""


async def test_an_agent_that_does_not_come_back_is_no_error_loop(
    sleepy: World, assert_logs: AssertLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asleep(sleepy)
    get = sleepy.tunnels.get
    calls = []

    async def deaf_once(box_id: str, timeout: float = 30) -> object:
        calls.append(timeout)
        if len(calls) == 1:
            raise Unavailable("no hello")
        return await get(box_id, timeout)

    monkeypatch.setattr(sleepy.tunnels, "get", deaf_once)
    with assert_logs("starts from its disk"):
        woken = await up(sleepy)
    assert "did not answer after its memory was restored: no hello" in woken.detail
    assert calls[:2] == [assembly.RESUME_TIMEOUT, assembly.HELLO_TIMEOUT]
    assert sleepy.steps.done.count("backend.start") == 2


async def test_lost_memory_and_a_failing_start_leave_a_box_that_starts_later(
    sleepy: World, assert_logs: AssertLogs
) -> None:
    await asleep(sleepy)
    sleepy.fail_at("backend.resume", MemoryLost("cut off"))
    sleepy.fail_at("backend.start")
    with assert_logs("starts from its disk"), pytest.raises(Unavailable):
        await up(sleepy)
    now = await stored(sleepy)
    assert (now.state, now.memory) == (BoxState.SUSPENDED, False)
    sleepy.heal()
    assert (await up(sleepy)).state is BoxState.RUNNING


async def test_memory_that_vanished_while_no_daemon_lived_is_told(
    sleepy: World, assert_logs: AssertLogs
) -> None:
    box = await asleep(sleepy)
    await sleepy.close()
    await sleepy.backend.discard_memory(box.id)
    with assert_logs("its memory is no longer on the host"):
        await sleepy.restart()
    assert not (await stored(sleepy)).memory
    assert (await up(sleepy)).state is BoxState.RUNNING


async def test_a_daemon_finds_what_runs_or_stands_still_against_its_row(sleepy: World) -> None:
    box = await up(sleepy)
    await sleepy.backend.freeze(box.id)
    await sleepy.restart()
    assert await sleepy.backend.lives(box.id)
    assert (await stored(sleepy)).state is BoxState.RUNNING
    sleepy.backend.crash(box.id)
    await sleepy.restart()
    assert ((await stored(sleepy)).state, (await stored(sleepy)).detail) == (
        BoxState.SUSPENDED,
        DIED,
    )


async def test_boxes_go_to_sleep_with_the_service_and_wake_after_it(sleepy: World) -> None:
    boxes = [await up(sleepy, name) for name in ("one", "two", "three", "four", "five")]
    secret = await up(sleepy, "secret")
    await sleepy.store.change_box(secret.id, confidential=True)
    await sleepy.close(stop_boxes=True)
    told = {box.name: (box.state, box.memory, box.detail) for box in await rows(sleepy)}
    assert told.pop("secret") == (BoxState.SUSPENDED, False, STOPPED)
    assert set(told.values()) == {(BoxState.SUSPENDED, True, SLEEPS)}
    await sleepy.restart()
    assert (await up(sleepy, "one")).id == boxes[0].id
    assert sleepy.backend.resumes(boxes[0].id) == 1


async def test_a_box_that_cannot_sleep_with_the_service_is_stopped(
    sleepy: World, assert_logs: AssertLogs
) -> None:
    await up(sleepy)
    sleepy.fail_at("backend.save_memory")
    with assert_logs("stopping it"):
        await sleepy.close(stop_boxes=True)
    now = await stored(sleepy)
    assert (now.state, now.memory, now.detail) == (BoxState.SUSPENDED, False, STOPPED)
    sleepy.heal()
    await sleepy.restart()
    assert (await up(sleepy)).state is BoxState.RUNNING


async def test_after_a_restart_of_the_host_sleepers_sleep_and_runners_start_from_disk(
    sleepy: World,
) -> None:
    sleeper, runner = await asleep(sleepy, "sleeper"), await up(sleepy, "runner")
    await sleepy.reboot()
    await sleepy.quiet()
    told = {box.id: box for box in await rows(sleepy)}
    assert (told[sleeper.id].state, told[sleeper.id].memory) == (BoxState.SUSPENDED, True)
    now = told[runner.id]
    assert (now.state, now.detail) == (BoxState.RUNNING, STARTED_AGAIN)
    assert await sleepy.backend.lives(runner.id)
    assert sleepy.backend.resumes(runner.id) == 0
    assert (await up(sleepy, "sleeper")).state is BoxState.RUNNING
    assert sleepy.backend.resumes(sleeper.id) == 1


async def test_the_row_tells_the_step_before_it_is_done(
    sleepy: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await up(sleepy)
    seen: list[tuple[str, str, int, bool]] = []
    for owner, name in (
        (sleepy.tunnels, "quiesce"),
        (sleepy.backend, "freeze"),
        (sleepy.backend, "save_memory"),
        (sleepy.backend, "stop"),
        (sleepy.backend, "resume"),
        (sleepy.tunnels, "get"),
    ):
        real = getattr(owner, name)

        async def spied(*args: object, real: object = real, name: str = name) -> object:
            now = await stored(sleepy)
            seen.append((name, now.state.value, now.step, now.memory))
            assert callable(real)
            return await real(*args)

        monkeypatch.setattr(owner, name, spied)
    await sleepy.lifecycle.suspend(box)
    await up(sleepy)
    assert seen == [
        ("quiesce", "suspending", 1, False),
        ("freeze", "suspending", 2, False),
        ("save_memory", "suspending", 3, False),
        ("stop", "suspending", 4, True),
        ("resume", "resuming", 2, True),
        ("get", "resuming", 3, True),
    ]


async def test_a_row_left_in_between_is_settled_by_the_timers(sleepy: World) -> None:
    box = await up(sleepy)
    await sleepy.store.change_state(box.id, BoxState.RUNNING, BoxState.SUSPENDING, step=2)
    sleepy.lifecycle._timers._unsettled[box.id] = replace(box, state=BoxState.SUSPENDING)
    sleepy.lifecycle._timers._retry_at = 0
    await sleepy.look()
    assert (await stored(sleepy)).state is BoxState.RUNNING
    assert sleepy.lifecycle._timers._unsettled == {}


async def test_a_suspension_that_leaves_its_root_in_use_fails_and_keeps_the_memory(
    sleepy: World, monkeypatch: pytest.MonkeyPatch, assert_logs: AssertLogs
) -> None:
    box = await up(sleepy)
    stop = sleepy.backend.stop

    async def held(box_id: str) -> None:
        await stop(box_id)
        raise RootHeld("the box was stopped, but it cannot start yet")

    with monkeypatch.context() as patch:
        patch.setattr(sleepy.backend, "stop", held)
        with (
            assert_logs("box is suspending: the box was stopped, but it cannot start yet"),
            pytest.raises(RootHeld),
        ):
            await sleepy.lifecycle.suspend(box)
    assert sleepy.drives.attached == set()
    assert (await up(sleepy)).state is BoxState.RUNNING
    assert sleepy.backend.memories == [box.id]
