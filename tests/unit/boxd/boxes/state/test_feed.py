"""The change feed by itself: who hears what, how much is kept, and what is left at the end."""

from __future__ import annotations

import asyncio

from boxd.boxes.state.feed import ANY_SURFACE, ASKS, FLEET, MAX_PENDING, SURFACES, Feed, surface

ALICE, BOB = "SHA256:alice", "SHA256:bob"


async def test_what_changes_again_before_anybody_comes_is_told_once() -> None:
    feed = Feed()
    with feed.listen(ALICE, None) as heard:
        feed.fleet(ALICE, None)
        feed.fleet(ALICE, "ws1")
        feed.asks(ALICE, None)
        assert await heard.next() == {FLEET, ASKS}
        feed.canvas(ALICE, None, "plan")
        assert await heard.next() == {SURFACES, surface("plan")}


async def test_one_that_waits_is_woken() -> None:
    feed = Feed()
    with feed.listen(ALICE, None) as heard:
        waiting = asyncio.create_task(heard.next())
        await asyncio.sleep(0)
        assert not waiting.done()
        feed.fleet(ALICE, None)
        assert await waiting == {FLEET}


async def test_nobody_hears_of_others() -> None:
    feed = Feed()
    with (
        feed.listen(ALICE, None) as account,
        feed.listen(ALICE, "ws1") as inside,
        feed.listen(ALICE, "ws2") as outside,
        feed.listen(BOB, None) as other,
        feed.listen(BOB, "ws1") as other_inside,
    ):
        feed.fleet(ALICE, "ws1")
        feed.asks(ALICE, "ws1")
        assert await account.next() == {FLEET, ASKS}
        assert await inside.next() == {FLEET, ASKS}
        feed.canvas(ALICE, "ws1", "one")
        feed.canvas(ALICE, None, "two")
        assert await inside.next() == {SURFACES, surface("one")}
        assert await account.next() == {SURFACES, surface("two")}
        feed.fleet(ALICE, None)
        assert await account.next() == {FLEET}
        for silent in (inside, outside, other, other_inside):
            waiting = asyncio.create_task(silent.next())
            await asyncio.sleep(0)
            assert not waiting.done()
            waiting.cancel()


async def test_what_is_kept_for_one_who_does_not_come_is_bounded() -> None:
    feed = Feed()
    with feed.listen(ALICE, None) as heard:
        for number in range(2 * MAX_PENDING):
            feed.canvas(ALICE, None, f"c{number}")
        topics = await heard.next()
        assert len(topics) <= MAX_PENDING
        assert {FLEET, ASKS, SURFACES, ANY_SURFACE} <= topics


async def test_nothing_is_kept_for_one_who_left() -> None:
    feed = Feed()
    with feed.listen(ALICE, None) as first, feed.listen(ALICE, None) as second:
        feed.fleet(ALICE, None)
        assert await first.next() == await second.next() == {FLEET}
    assert vars(feed) == vars(Feed())
