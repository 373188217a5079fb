"""What a credential holds open ends with it, by the wall clock."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.lifecycle.holds import AttachRequest
from boxd.boxes.presence import expiry
from boxd.boxes.presence.expiry import Expiry, ending
from boxd.boxes.state.requests import BoxRequest
from boxd.errors import InvalidKey
from tests.harness.simulation.world import TurnedClock
from tests.harness.wait import until
from tests.unit.boxd.boxes.life import OWNER, spec

if TYPE_CHECKING:
    from tests.harness.simulation.world import World

HOUR = timedelta(hours=1)
TEXT = "it has expired"


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for half a minute."""
    monkeypatch.setattr(expiry, "LOOK_EVERY_S", 0.01)


async def looked_again() -> None:
    """Enough time for the wall clock to be looked at."""
    await asyncio.sleep(0.1)


async def test_it_ends_what_is_open_and_leaves_the_rest(world: World) -> None:
    async def visit(key_id: str, ends: Expiry | None) -> None:
        attach = world.lifecycle.attach
        async with attach(
            AttachRequest(
                BoxRequest(OWNER, None, spec("web")), why="exec", key_id=key_id, expiry=ends
            )
        ):
            await asyncio.Event().wait()

    short, long, endless = (
        asyncio.create_task(visit(key_id, ends))
        for key_id, ends in (
            ("k1", Expiry(world.clock.now() + HOUR, TEXT)),
            ("k2", Expiry(world.clock.now() + 2 * HOUR, "much later")),
            ("k3", None),
        )
    )
    [box] = [await world.lifecycle.up(BoxRequest(OWNER, None, spec("web")))]
    await until(lambda: world.lifecycle.attachments.count(box.id) == 3)
    await looked_again()
    assert not short.done()
    world.clock.turn(HOUR)
    with pytest.raises(InvalidKey, match=TEXT):
        await asyncio.wait_for(short, 30)
    await looked_again()
    assert world.lifecycle.attachments.count(box.id) == 2
    for left in (long, endless):
        assert not left.done()
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left


async def test_an_existing_box_is_let_go_as_well(world: World) -> None:
    box = await world.lifecycle.up(BoxRequest(OWNER, None, spec("web")))
    ends = Expiry(world.clock.now() + HOUR, TEXT)

    async def visit() -> None:
        async with world.lifecycle.attach(AttachRequest(box, why="x", key_id="k1", expiry=ends)):
            world.clock.turn(HOUR)
            await asyncio.Event().wait()

    with pytest.raises(InvalidKey, match=TEXT):
        await asyncio.wait_for(visit(), 30)
    assert world.lifecycle.attachments.count(box.id) == 0


async def test_the_wall_clock_may_be_set_meanwhile() -> None:
    clock, ended = TurnedClock(), list[str]()
    with ending(Expiry(clock.now() + timedelta(seconds=0.05), TEXT), clock, ended.append):
        clock.set(-HOUR)
        await looked_again()
        assert ended == []
        clock.set(2 * HOUR)
        await until(lambda: ended)
        await looked_again()
        assert ended == [TEXT]


async def test_what_is_over_before_is_not_ended() -> None:
    clock, ended = TurnedClock(), list[str]()
    with ending(Expiry(clock.now() + HOUR, TEXT), clock, ended.append):
        pass
    clock.turn(HOUR)
    await looked_again()
    assert ended == []


async def test_what_has_expired_already_is_ended_at_once() -> None:
    clock, ended = TurnedClock(), list[str]()
    with ending(Expiry(clock.now(), TEXT), clock, ended.append):
        assert ended == [TEXT]
