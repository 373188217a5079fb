"""Limits of single owners: which tier counts, and that every limit asks for its owner's."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.limits.tier_limits import load_tiers
from boxd.boxes.limits.tiers import Tiers
from boxd.errors import BadRequest, QuotaExceeded
from tests.doubles.control_store import MemoryStore
from tests.harness.simulation.world import ALICE, BOB, World

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from boxd.principal import Principal
    from tests.plugins.strict_logs import AssertLogs

DEFAULT = load_tiers()["default"]
LARGE = replace(DEFAULT, boxes=99)


async def test_an_owner_has_the_default_limits_until_it_is_given_others() -> None:
    store = MemoryStore()
    tiers = Tiers(store, {"default": DEFAULT, "large": LARGE})
    await tiers.start()
    assert (tiers.of(ALICE.owner), tiers.name_of(ALICE.owner)) == (DEFAULT, "default")
    await tiers.assign(ALICE.owner, "large")
    assert (tiers.of(ALICE.owner), tiers.name_of(ALICE.owner)) == (LARGE, "large")
    assert tiers.of(BOB.owner) == DEFAULT
    with pytest.raises(BadRequest, match="no tier 'golden'; known: default, large"):
        await tiers.assign(ALICE.owner, "golden")
    again = Tiers(store, {"default": DEFAULT, "large": LARGE})
    await again.start()
    assert again.of(ALICE.owner) == LARGE
    await again.assign(ALICE.owner, "default")
    assert again.of(ALICE.owner) == DEFAULT
    assert [account.tier for account in await store.accounts()] == [None]


async def test_a_tier_that_is_gone_counts_as_the_default_one(assert_logs: AssertLogs) -> None:
    store = MemoryStore()
    await store.set_tier(ALICE.owner, "large")
    tiers = Tiers(store, {"default": DEFAULT})
    with assert_logs("tier large no longer exists"):
        await tiers.start()
    assert (tiers.of(ALICE.owner), tiers.name_of(ALICE.owner)) == (DEFAULT, "default")


async def test_every_limit_is_that_of_its_owner(tmp_path: Path) -> None:
    world = World(tmp_path, suspends=True)
    hour = timedelta(hours=1)
    world.tiers[BOB.owner] = replace(
        DEFAULT, boxes=1, snapshots=1, keys=1, workspaces=1, disk_mb=7, deadline_max=hour
    )
    await world.start()
    ops = world.operations
    for who in (ALICE, BOB):
        await ops.boxes.up(who, "ws1/web^2h")
        await ops.snapshots.create_snapshot(who, "ws1/web")
        await ops.keys.create_key(who, "laptop", scope=None, ttl=None)
    [mine], [other] = await world.store.boxes(ALICE.owner), await world.store.boxes(BOB.owner)
    assert (mine.deadline, mine.disk_mb) == (mine.created + 2 * hour, DEFAULT.disk_mb)
    assert (other.deadline, other.disk_mb) == (other.created + hour, 7)
    refused: dict[str, Callable[[Principal], Awaitable[object]]] = {
        "1 boxes per owner": lambda who: ops.boxes.up(who, "db"),
        "1 workspaces per owner": lambda who: ops.boxes.up(who, "ws2/web"),
        "1 snapshots per owner": lambda who: ops.snapshots.create_snapshot(who, "ws1/web"),
        "1 API keys per owner": lambda who: ops.keys.create_key(who, "ci", scope=None, ttl=None),
    }
    for text, verb in refused.items():
        with pytest.raises(QuotaExceeded, match=text):
            await verb(BOB)
        await verb(ALICE)
    await world.close()
