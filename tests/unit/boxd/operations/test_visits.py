"""Connections that stay: what they hear of which verb, and what ends them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.state.feed import ASKS, FLEET
from boxd.boxes.state.requests import BoxAccess
from boxd.errors import Forbidden, InvalidKey
from boxd.model.presence import Presence
from boxd.principal import Principal
from tests.harness.simulation.world import ALICE, BOB, SCOPED, World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from boxd.boxes.state.feed import Listener
    from boxd.operations import Operations


@pytest.fixture
async def sleepy(tmp_path: Path) -> AsyncIterator[World]:
    """Where boxes can be suspended."""
    world = World(tmp_path, suspends=True)
    await world.start()
    yield world
    await world.close()


@pytest.fixture
def heard(sleepy: World) -> Iterator[dict[str, Listener]]:
    """Three who listen: to Alice's account, to her workspace `ws1`, to Bob's account."""
    ops = sleepy.operations
    with (
        ops.visits.changes(ALICE) as account,
        ops.visits.changes(SCOPED) as inside,
        ops.visits.changes(BOB) as other,
    ):
        yield {"account": account, "inside": inside, "other": other}


def silent(listener: Listener) -> bool:
    """Whether it has heard nothing since it was asked last."""
    waiting = listener.next()
    try:
        waiting.send(None)
    except StopIteration:
        return False
    finally:
        waiting.close()
    return True


async def test_verbs_that_change_a_box_are_heard(sleepy: World, heard: dict[str, Listener]) -> None:
    ops = sleepy.operations
    await ops.boxes.up(ALICE, "web")
    assert await heard["account"].next() == {FLEET}
    verbs: list[Callable[[], Awaitable[object]]] = [
        lambda: ops.boxes.pin(ALICE, "web", span=timedelta(hours=1)),
        lambda: ops.boxes.unpin(ALICE, "web"),
        lambda: ops.boxes.keep(ALICE, "web"),
        lambda: ops.boxes.keep(ALICE, "web", durable=False),
        lambda: ops.boxes.suspend(ALICE, "web"),
        lambda: ops.boxes.resume(ALICE, "web"),
        lambda: ops.snapshots.fork(ALICE, "web", "copy"),
        lambda: ops.boxes.remove(ALICE, "copy"),
    ]
    for verb in verbs:
        assert silent(heard["account"])
        await verb()
        assert await heard["account"].next() == {FLEET}
    assert silent(heard["inside"])
    assert silent(heard["other"])


async def test_attaching_and_leaving_are_heard(sleepy: World, heard: dict[str, Listener]) -> None:
    ops = sleepy.operations
    await ops.boxes.up(ALICE, "ws1/web")
    await heard["inside"].next()
    async with ops.boxes.attach(ALICE, BoxAccess("ws1/web", kind="reference", why="session")):
        assert await heard["inside"].next() == {FLEET}
    assert await heard["inside"].next() == {FLEET}
    (box,) = await ops.boxes.list_boxes(SCOPED)
    sleepy.lifecycle.report(box.id, Presence(1))
    assert await heard["inside"].next() == {FLEET}
    assert silent(heard["other"])


async def test_what_the_timers_do_is_heard(sleepy: World, heard: dict[str, Listener]) -> None:
    await sleepy.operations.boxes.up(ALICE, "web^1h")
    await heard["account"].next()
    sleepy.clock.turn(timedelta(hours=2))
    await sleepy.look()
    assert await heard["account"].next() == {FLEET}
    assert await sleepy.operations.boxes.list_boxes(ALICE) == []


async def test_questions_and_answers_are_heard(sleepy: World, heard: dict[str, Listener]) -> None:
    ops = sleepy.operations
    box = await ops.boxes.up(ALICE, "ws1/web")
    for one in ("account", "inside"):
        await heard[one].next()
    asked = await ops.asks.request_of_box(box.id, "ask", {"question": "Go on?", "options": []})
    for one in ("account", "inside"):
        assert await heard[one].next() == {ASKS}
    await ops.asks.answer_ask(ALICE, str(asked["ask"]), "yes")
    for one in ("account", "inside"):
        assert await heard[one].next() == {ASKS}
    assert silent(heard["other"])


async def test_a_change_is_told_in_its_own_turn(sleepy: World, heard: dict[str, Listener]) -> None:
    ops = sleepy.operations
    await ops.boxes.up(ALICE, "web")
    async with ops.boxes.attach(ALICE, BoxAccess("web", kind="reference", why="session")) as held:
        await heard["account"].next()
        sleepy.lifecycle.attachments.remove(held.hold)
        assert not silent(heard["account"])


async def test_shares_and_cookies_hear_nothing(ops: Operations) -> None:
    for via in ("share", "cookie"):
        with pytest.raises(Forbidden):
            ops.visits.changes(Principal(ALICE.owner, None, via, box="0" * 32))


async def test_a_revoked_key_ends_its_visit(ops: Operations) -> None:
    key, _ = await ops.keys.create_key(ALICE, "laptop", scope=None, ttl=None)
    p = Principal(ALICE.owner, None, "api_key", key.id)
    inside = asyncio.Event()

    async def stay() -> None:
        async with ops.visits.visit(p, "mcp"):
            inside.set()
            await asyncio.Event().wait()

    visit = asyncio.create_task(stay())
    await inside.wait()
    await ops.keys.remove_key(ALICE, "laptop")
    with pytest.raises(InvalidKey):
        await visit
    with pytest.raises(InvalidKey):
        await stay()


async def test_a_key_that_expires_ends_its_visit(world: World) -> None:
    p = replace(SCOPED, expires=world.clock.now())
    with pytest.raises(InvalidKey, match="expired"):
        async with world.operations.visits.visit(p, "mcp"):
            await asyncio.Event().wait()


async def test_a_blocked_owner_is_no_visitor(world: World) -> None:
    await world.operations.callers.access_policy.block(ALICE.owner)
    with pytest.raises(Forbidden):
        world.operations.visits.visit(ALICE, "mcp")
