"""Life of boxes on fakes: connecting, removal, holds, deadlines."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.lifecycle.holds import AttachRequest
from boxd.boxes.state.requests import BoxRequest
from boxd.boxes.timing import timers
from boxd.errors import Forbidden, InvalidKey, NotFound, UnknownImage
from boxd.model.box import BoxState
from boxd.model.progress import Progress
from tests.harness.simulation.world import ALICE
from tests.harness.wait import until
from tests.unit.boxd.boxes.life import OWNER, rows, spec, up

if TYPE_CHECKING:
    from boxd.model.box import Box
    from tests.harness.simulation.world import World
    from tests.plugins.strict_logs import AssertLogs


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


async def test_removal_leaves_nothing(world: World) -> None:
    box = await up(world)
    await world.lifecycle.remove(box)
    await world.lifecycle.remove(box)
    assert await world.left_overs() == {}


async def test_fresh_spec_replaces_the_box_and_says_so(world: World) -> None:
    old = await up(world)
    said: list[str] = []
    new = await world.lifecycle.up(BoxRequest(OWNER, None, spec("web+")), Progress(said.append))
    assert new.id != old.id
    assert [box.id for box in await rows(world)] == [new.id]
    assert said == [f"removed the old box web ({old.id[:12]})"]


async def test_deadline_is_clamped_to_the_tier(world: World) -> None:
    box = await up(world, "web^3650d")
    assert box.deadline == world.clock.now() + world.tier.deadline_max


async def test_deadline_removes_whatever_holds_the_box(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers, "TICK", 0.001)
    await world.restart()
    async with world.lifecycle.attach(
        AttachRequest(BoxRequest(OWNER, None, spec("web^1h")), why="session", key_id=None)
    ):
        world.clock.turn(timedelta(minutes=59))
        await asyncio.sleep(0.01)
        assert len(await rows(world)) == 1
        world.clock.turn(timedelta(minutes=2))
        await until(lambda: "backend.destroy" in world.steps.done)
        await world.lifecycle.close(stop_boxes=False)
    assert await world.left_overs() == {}


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
                    world.lifecycle.attach(
                        AttachRequest(
                            BoxRequest(OWNER, None, spec("_")), why="session", key_id=None
                        )
                    )
                )
            ).box
            for _ in range(2)
        ]
        assert len({box.name for box in boxes}) == 2
        second = await stack.enter_async_context(
            world.lifecycle.attach(AttachRequest(boxes[0], why="exec", key_id=None))
        )
        assert second.box.id == boxes[0].id
    await world.close()
    assert await world.left_overs() == {}


async def test_abandoned_anonymous_box_goes_too(world: World) -> None:
    world.steps.held["tunnel.hello"] = asyncio.Event()

    async def visit() -> None:
        async with world.lifecycle.attach(
            AttachRequest(BoxRequest(OWNER, None, spec("_")), why="session", key_id=None)
        ):
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
    async with attach(
        AttachRequest(BoxRequest(OWNER, None, spec("web")), why="session", key_id=None)
    ) as one:
        async with attach(
            AttachRequest(BoxRequest(OWNER, None, spec("web")), why="exec", key_id=None)
        ):
            assert world.lifecycle.attachments.why(one.box.id) == {"exec": 1, "session": 1}
        assert world.lifecycle.attachments.why(one.box.id) == {"session": 1}
    assert world.lifecycle.attachments.count(one.box.id) == 0


async def test_revoked_key_ends_what_it_holds(world: World) -> None:
    entered = asyncio.Event()

    async def visit(key_id: str | None) -> None:
        async with world.lifecycle.attach(
            AttachRequest(BoxRequest(OWNER, None, spec("web")), why="exec", key_id=key_id)
        ):
            entered.set()
            await asyncio.Event().wait()

    revoked, other = asyncio.create_task(visit("k1")), asyncio.create_task(visit("k2"))
    await entered.wait()
    await until(lambda: sum(len(h) for h in world.lifecycle.attachments._holds.values()) == 2)
    await asyncio.sleep(0)
    assert world.lifecycle.attachments.end_key("k1", "it was revoked") == 1
    with pytest.raises(InvalidKey, match="it was revoked"):
        await revoked
    assert not other.done()
    other.cancel()
    with pytest.raises(asyncio.CancelledError):
        await other


async def test_a_key_that_was_revoked_a_moment_ago_makes_no_box(world: World) -> None:
    world.lifecycle.attachments.end_key("k1", "it was revoked")
    with pytest.raises(InvalidKey, match="it was revoked"):
        async with world.lifecycle.attach(
            AttachRequest(BoxRequest(OWNER, None, spec("web")), why="exec", key_id="k1")
        ):
            pytest.fail("nobody may come in")
    assert await rows(world) == []


async def test_who_is_sent_away_is_told_why_once(world: World) -> None:
    inside = asyncio.Event()

    async def visit() -> None:
        box = await world.lifecycle.up(BoxRequest(OWNER, None, spec("web")))
        async with world.lifecycle.attach(AttachRequest(box, why="session", key_id=None)):
            inside.set()
            await asyncio.Event().wait()

    visitor = asyncio.create_task(visit())
    await inside.wait()
    [box] = await rows(world)
    attachments = world.lifecycle.attachments
    assert attachments.end_owner("SHA256:other", "another") == 0
    assert attachments.end_box(box.id, "sent away") == 1
    assert attachments.end_owner(OWNER, "blocked") == 1
    with pytest.raises(Forbidden, match="sent away"):
        await visitor
    assert attachments.count(box.id) == 0
    [left] = await rows(world)
    assert left.state is BoxState.RUNNING


@pytest.mark.parametrize("step", ["backend.start", "tunnel.hello"])
async def test_a_key_that_is_revoked_while_the_box_is_made_attaches_nobody(
    world: World, step: str
) -> None:
    held = world.steps.held[step] = asyncio.Event()

    async def visit() -> None:
        async with world.lifecycle.attach(
            AttachRequest(BoxRequest(OWNER, None, spec("web")), why="exec", key_id="k1")
        ):
            pytest.fail("nobody may come in")

    visitor = asyncio.create_task(visit())
    await until(lambda: step in world.steps.done)
    assert world.lifecycle.attachments.end_key("k1", "revoked") == 1
    with pytest.raises(InvalidKey):
        await visitor
    held.set()
    await world.quiet()
    [box] = await rows(world)
    assert box.state is BoxState.RUNNING
    assert world.lifecycle.attachments.count(box.id) == 0


async def test_who_does_not_wait_is_told_of_what_is_on_its_way(
    sleepy: World, assert_logs: AssertLogs
) -> None:
    async def begin(text: str = "web") -> Box:
        return await sleepy.lifecycle.up(BoxRequest(OWNER, None, spec(text)), wait=False)

    with pytest.raises(UnknownImage):
        await begin("web:nope")
    assert (await begin()).state is BoxState.CREATING
    await sleepy.quiet()
    [box] = await rows(sleepy)
    assert await begin() == box
    await sleepy.lifecycle.suspend(box)
    held = sleepy.steps.held["tunnel.hello"] = asyncio.Event()
    assert (await begin()).state is BoxState.RESUMING
    held.set()
    await sleepy.quiet()
    assert (await rows(sleepy))[0].state is BoxState.RUNNING
    sleepy.fail_at("backend.start")
    with assert_logs("box did not start: backend.start failed"):
        await begin("other")
        await sleepy.quiet()
    assert [one.ref for one in await rows(sleepy)] == ["web"]


async def test_what_an_agent_was_cut_off_for_is_told_while_the_box_runs(sleepy: World) -> None:
    box = await up(sleepy)
    sleepy.lifecycle.misbehaved(box.id, "agent misbehaved: too many lines in a second")
    sleepy.lifecycle.misbehaved("f" * 32, "agent misbehaved: of a box that is gone")
    await sleepy.quiet()
    [view] = await sleepy.operations.boxes.list_boxes(ALICE)
    assert view.detail == "agent misbehaved: too many lines in a second"
    # The next change of its state tells what is true then, and late news of before do not count.
    await sleepy.lifecycle.suspend(box)
    sleepy.lifecycle.misbehaved(box.id, "agent misbehaved: late")
    await sleepy.quiet()
    [view] = await sleepy.operations.boxes.list_boxes(ALICE)
    assert view.detail == ""
