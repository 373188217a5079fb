"""Who is let in, and who is no stranger."""

from __future__ import annotations

import asyncio

import pytest

from boxd.boxes.limits.access_policy import AccessPolicy
from boxd.errors import Forbidden, Unavailable
from tests.doubles.control_store import MemoryStore
from tests.harness.simulation.world import ALICE, BOB, TurnedClock


async def test_whom_it_knows() -> None:
    store = MemoryStore()
    await store.set_tier(ALICE.owner, "large")
    gate = AccessPolicy(store, TurnedClock())
    await gate.start()
    assert gate.knows(ALICE.owner)
    assert not gate.knows(BOB.owner)
    await gate.block(BOB.owner)
    assert gate.knows(BOB.owner)


async def test_who_cannot_be_recorded_as_blocked_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    gate = AccessPolicy(store, TurnedClock())

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
    gate = AccessPolicy(store, clock)
    for _ in range(5):
        await asyncio.gather(
            *(act(ALICE.owner) for _ in range(5) for act in (gate.block, gate.unblock))
        )
        [account] = await store.accounts()
        assert account.blocked == gate.blocked_since(ALICE.owner)
