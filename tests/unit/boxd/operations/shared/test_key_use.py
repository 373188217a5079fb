"""When the last use of an API key or a share is written."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from boxd.boxes.state.requests import BoxAccess
from boxd.errors import Unavailable
from boxd.operations.shared.key_use import LastUses
from boxd.principal import Principal
from tests.harness.simulation.world import ALICE, BOB, TurnedClock

if TYPE_CHECKING:
    from boxd.operations import Operations
    from tests.harness.simulation.world import World


async def test_last_use_is_written_at_most_once_a_minute(world: World, ops: Operations) -> None:
    _, secret = await ops.keys.create_key(ALICE, "laptop", scope=None, ttl=None)

    async def use(after: timedelta) -> object:
        world.clock.turn(after)
        await ops.keys.principal_of_key(secret.reveal())
        await ops.close()
        return (await ops.keys.list_keys(ALICE))[0].last_used

    first = await use(timedelta(0))
    assert first == world.clock.now()
    assert await use(timedelta(seconds=59)) == first
    assert await use(timedelta(seconds=1)) == world.clock.now()


async def test_of_each_kind_and_again_when_it_could_not_be_written() -> None:
    clock, written, broken = TurnedClock(), list[tuple[str, datetime]](), [True]

    async def write(key_id: str, when: datetime) -> None:
        if broken:
            broken.clear()
            raise Unavailable("the database does not answer")
        written.append((key_id, when))

    uses = LastUses(write, clock)
    for key_id in ("a", "a", "b", "b"):
        uses.touch(key_id)
        await uses.close()
    assert written == [("a", clock.now()), ("b", clock.now())]


async def test_what_is_not_used_any_more_is_not_remembered() -> None:
    clock = TurnedClock()

    async def write(key_id: str, when: datetime) -> None:
        pass

    uses = LastUses(write, clock)
    for number in range(100):
        uses.touch(str(number))
        clock.turn(timedelta(seconds=2))
    await uses.close()
    assert len(uses._touched) == 30


async def test_of_a_stranger_nothing_is_kept(world: World, ops: Operations) -> None:
    async def seen(p: Principal) -> object:
        ops.callers.seen(p)
        await ops.close()
        return {one.owner: one.last_seen for one in await world.store.accounts()}

    assert await seen(ALICE) == {}
    box = await ops.boxes.up(ALICE, "web")
    came = world.clock.now()
    assert await seen(BOB) == {ALICE.owner: came}
    world.clock.turn(timedelta(seconds=60))
    holder = Principal(ALICE.owner, None, "share", "s1", box=box.id)
    async with ops.boxes.attach(holder, BoxAccess("web", kind="reference", why="x")):
        assert await seen(holder) == {ALICE.owner: came}
    assert await seen(ALICE) == {ALICE.owner: world.clock.now()}
    await world.restart()
    world.clock.turn(timedelta(seconds=60))
    ops = world.operations
    assert await seen(ALICE) == {ALICE.owner: world.clock.now()}
