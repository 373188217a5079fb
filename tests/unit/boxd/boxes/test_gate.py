"""Who is let in, and when owners were seen."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.gate import NOTED_EVERY_S, Gate
from boxd.errors import Forbidden, Unavailable
from boxd.store.memory import MemoryStore
from tests.harness.world import ALICE, BOB, TurnedClock

if TYPE_CHECKING:
    from datetime import datetime


async def seen(store: MemoryStore) -> dict[str, datetime | None]:
    """When owners were seen, as it is stored."""
    return {one.owner: one.last_seen for one in await store.accounts()}


async def test_of_a_stranger_nothing_is_kept() -> None:
    store, clock = MemoryStore(), TurnedClock()
    gate = Gate(store, clock)
    gate.seen(ALICE.owner)
    await gate.close()
    assert await seen(store) == {}
    gate.seen(ALICE.owner, has_something=True)
    await gate.close()
    assert await seen(store) == {ALICE.owner: clock.now()}
    first = clock.now()
    clock.turn(timedelta(seconds=NOTED_EVERY_S - 1))
    gate.seen(ALICE.owner)
    await gate.close()
    assert await seen(store) == {ALICE.owner: first}
    clock.turn(timedelta(seconds=1))
    gate.seen(ALICE.owner)
    await gate.close()
    assert await seen(store) == {ALICE.owner: clock.now()}


async def test_the_next_service_knows_who_is_no_stranger() -> None:
    store, clock = MemoryStore(), TurnedClock()
    await store.set_tier(ALICE.owner, "large")
    gate = Gate(store, clock)
    await gate.start()
    gate.seen(ALICE.owner)
    gate.seen(BOB.owner)
    await gate.close()
    assert await seen(store) == {ALICE.owner: clock.now()}


async def test_what_cannot_be_written_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock = MemoryStore(), TurnedClock()
    gate = Gate(store, clock)

    async def fail(*_: object) -> None:
        raise Unavailable("out")

    with monkeypatch.context() as patch:
        patch.setattr(store, "touch_account", fail)
        gate.seen(ALICE.owner, has_something=True)
        await gate.close()
    gate.seen(ALICE.owner)
    await gate.close()
    assert await seen(store) == {ALICE.owner: clock.now()}


async def test_who_cannot_be_recorded_as_blocked_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    gate = Gate(store, TurnedClock())

    async def fail(*_: object) -> None:
        raise Unavailable("out")

    with monkeypatch.context() as patch:
        patch.setattr(store, "set_blocked", fail)
        with pytest.raises(Unavailable):
            await gate.block(ALICE.owner)
        gate.check_owner(ALICE.owner)
    await gate.block(ALICE.owner)
    with monkeypatch.context() as patch:
        patch.setattr(store, "set_blocked", fail)
        with pytest.raises(Unavailable):
            await gate.unblock(ALICE.owner)
    with pytest.raises(Forbidden):
        gate.check_owner(ALICE.owner)


async def test_row_and_memory_end_the_same() -> None:
    store, clock = MemoryStore(), TurnedClock()
    gate = Gate(store, clock)
    for _ in range(5):
        await asyncio.gather(
            *(act(ALICE.owner) for _ in range(5) for act in (gate.block, gate.unblock))
        )
        [account] = await store.accounts()
        assert account.blocked == gate.blocked_since(ALICE.owner)
