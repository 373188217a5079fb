"""What is over by itself is told at that moment, by the wall clock, without the store."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.state import expiry_notifier as module
from boxd.boxes.state.expiry_notifier import SLACK, ExpiryNotifier
from boxd.boxes.state.feed import ASKS, SURFACES, Feed, surface
from boxd.model.end import End
from boxd.operations.asks import LIVES, MAX_WAIT_S
from tests.harness.simulation.world import ALICE, SCOPED, TurnedClock
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from boxd.boxes.state.feed import Change
    from tests.harness.simulation.world import World

HOUR = timedelta(hours=1)


class Told(Feed):
    """A feed that keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[Change] = []

    def publish(self, change: Change) -> None:
        self.changes.append(change)

    @property
    def names(self) -> list[str]:
        """The last topic of each change."""
        return [change.topics[-1] for change in self.changes]


class Watched:
    """Ends before a feed, and the clock that they go by."""

    def __init__(self) -> None:
        self.clock = TurnedClock()
        self.feed = Told()
        self.ends = ExpiryNotifier(self.feed, self.clock)

    def canvas(self, name: str, after: timedelta = HOUR) -> End:
        """One that ends so much later."""
        return End("canvas", ALICE.owner, "ws1", name, self.clock.now() + after)

    async def told(self, *names: str) -> None:
        """Waits until these were told, and no others."""
        await until(lambda: len(self.feed.names) >= len(names))
        assert self.feed.names == list(names)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for half a minute."""
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.01)


@pytest.fixture
def watched() -> Iterator[Watched]:
    """See `Watched`."""
    made = Watched()
    yield made
    made.ends.close()


async def test_each_is_told_at_its_moment(watched: Watched) -> None:
    watched.ends.put(watched.canvas("late", 2 * HOUR))
    watched.ends.start([watched.canvas("soon"), watched.canvas("last", 3 * HOUR)])
    told: list[str] = []
    for name in ("soon", "late", "last"):
        watched.clock.turn(HOUR - timedelta(microseconds=1))
        watched.ends._look()
        assert watched.feed.names == told
        watched.clock.turn(timedelta(microseconds=1))
        told.append(surface(name))
        await watched.told(*told)
    change = watched.feed.changes[0]
    assert (change.owner, change.workspace, change.exact) == (ALICE.owner, "ws1", True)
    assert watched.ends._timer is None


async def test_the_last_moment_that_was_said_counts(watched: Watched) -> None:
    for name in ("later", "never", "sooner"):
        watched.ends.put(watched.canvas(name, 2 * HOUR))
    watched.ends.put(watched.canvas("later", 3 * HOUR))
    watched.ends.drop("canvas", ALICE.owner, "ws1", "never")
    watched.ends.drop("canvas", ALICE.owner, None, "later")
    watched.ends.put(watched.canvas("sooner"))
    watched.clock.turn(HOUR)
    await watched.told(surface("sooner"))
    watched.clock.turn(HOUR)
    watched.ends._look()
    await watched.told(surface("sooner"))
    watched.clock.turn(HOUR)
    await watched.told(surface("sooner"), surface("later"))


async def test_the_wall_clock_may_be_set(watched: Watched) -> None:
    watched.ends.put(watched.canvas("plan"))
    watched.clock.set(HOUR)
    await watched.told(surface("plan"))


async def test_what_is_over_already_is_told_at_once(watched: Watched) -> None:
    watched.ends.put(watched.canvas("plan", timedelta(0)))
    assert watched.feed.names == [surface("plan")]


async def test_one_that_is_rendered_again_and_again_takes_no_more_room(watched: Watched) -> None:
    for number in range(10 * SLACK):
        watched.ends.put(watched.canvas("plan", HOUR + timedelta(seconds=number)))
    assert len(watched.ends._queue) <= SLACK + 2
    watched.clock.turn(2 * HOUR)
    await watched.told(surface("plan"))


async def test_what_goes_with_its_workspace_takes_no_room(watched: Watched) -> None:
    watched.ends.put(End("ask", ALICE.owner, None, "one", watched.clock.now() + HOUR))
    for number in range(10 * SLACK):
        watched.ends.put(watched.canvas(f"plan{number}"))
    watched.ends.drop_all(ALICE.owner, "ws1")
    assert len(watched.ends._times) == 1
    assert len(watched.ends._queue) <= SLACK + 2
    watched.clock.turn(HOUR)
    await watched.told(ASKS)


async def test_after_the_end_of_the_service_nothing_is_told(watched: Watched) -> None:
    watched.ends.put(watched.canvas("plan"))
    watched.ends.close()
    watched.ends.put(watched.canvas("other"))
    watched.clock.turn(HOUR)
    assert (watched.ends._timer, watched.feed.names) == (None, [])


async def test_who_listens_hears_that_a_canvas_is_gone(world: World) -> None:
    ops = world.operations
    await ops.canvases.render_canvas(SCOPED, "theirs", "x", ttl=HOUR)
    for name, ttl in (("plan", HOUR), ("again", HOUR), ("removed", HOUR), ("again", None)):
        await ops.canvases.render_canvas(ALICE, name, "x", ttl=ttl)
    await ops.canvases.remove_canvas(ALICE, "removed")
    with ops.visits.changes(ALICE) as heard:
        world.clock.turn(HOUR)
        assert await heard.next() == {SURFACES, surface("plan")}
        assert [one.id for one in await ops.canvases.list_canvases(ALICE)] == ["again"]


async def test_what_ends_after_a_restart_is_told_too(world: World) -> None:
    await world.operations.canvases.render_canvas(ALICE, "plan", "x", ttl=HOUR)
    asked = await world.operations.asks.ask(ALICE, "Go on?")
    await world.operations.asks.answer_ask(
        ALICE, (await world.operations.asks.ask(ALICE, "Yes?")).id, "yes"
    )
    await world.restart()
    with world.operations.visits.changes(ALICE) as heard:
        world.clock.turn(HOUR)
        assert await heard.next() == {SURFACES, surface("plan")}
        world.clock.turn(LIVES - HOUR)
        assert await heard.next() == {ASKS}
    assert (await world.operations.asks.wait_ask(ALICE, asked.id)).state == "expired"
    assert world.lifecycle.expiry_notifier._times == {}


async def test_who_waits_for_an_answer_is_told_that_there_will_be_none(world: World) -> None:
    ops = world.operations
    asked = await ops.asks.ask(ALICE, "Go on?")
    with ops.visits.changes(ALICE) as heard:
        waiting = asyncio.create_task(ops.asks.wait_ask(ALICE, asked.id, MAX_WAIT_S))
        await until(lambda: len(world.lifecycle.feed._listeners[ALICE.owner]) == 2)
        world.clock.turn(LIVES)
        assert await heard.next() == {ASKS}
        assert (await asyncio.wait_for(waiting, 30)).state == "expired"
