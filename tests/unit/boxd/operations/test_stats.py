"""What an owner is told of its use and limits, and of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from boxd.errors import NotFound
from boxd.model.stat import Stat
from tests.doubles.backend import MEMORY_BYTES
from tests.harness.simulation.world import ALICE, BOB, SCOPED

if TYPE_CHECKING:
    from tests.harness.simulation.world import World

MIB = 1024 * 1024


def by_name(stats: list[Stat]) -> dict[str, Stat]:
    return {one.what: one for one in stats}


async def test_the_account_is_measured_by_the_limits_of_its_tier(sleepy: World) -> None:
    ops, tier = sleepy.operations, sleepy.tier
    await ops.boxes.up(ALICE, "web:debian:large")
    asleep = await ops.boxes.up(ALICE, "ws1/db")
    await ops.snapshots.create_snapshot(ALICE, "ws1/db", "one")
    await ops.boxes.suspend(ALICE, asleep.id)
    await ops.keys.create_key(ALICE, "laptop", scope=None, ttl=None)
    await ops.boxes.up(BOB, "web")
    found = by_name(await ops.stats.account_stats(ALICE))
    assert found["boxes"] == Stat("boxes", 2, tier.boxes)
    assert found["running boxes"] == Stat("running boxes", 1, tier.running)
    assert found["cpus of running boxes"].used == 4.0
    assert found["memory of running boxes"] == (
        Stat("memory of running boxes", 4096 * MIB, tier.mem_mb * MIB, "bytes")
    )
    assert found["snapshots"] == Stat("snapshots", 1, tier.snapshots)
    assert found["api keys"] == Stat("api keys", 1, tier.keys)
    assert found["workspaces"] == Stat("workspaces", 1, tier.workspaces)


async def test_the_memory_of_a_sleeping_box_counts(sleepy: World) -> None:
    ops = sleepy.operations
    await ops.boxes.up(ALICE, "web")
    assert by_name(await ops.stats.account_stats(ALICE))["saved memory"].used == 0
    await ops.boxes.suspend(ALICE, "web")
    assert by_name(await ops.stats.box_stats(ALICE, "web"))["saved memory"].used == MEMORY_BYTES
    assert by_name(await ops.stats.account_stats(ALICE))["saved memory"].used == MEMORY_BYTES


async def test_a_box_is_measured_by_its_own_caps(sleepy: World) -> None:
    ops = sleepy.operations
    box = await ops.boxes.up(ALICE, "web:debian:large")
    found = by_name(await ops.stats.box_stats(ALICE, "web"))
    assert found["memory"].limit == 4096 * MIB
    assert found["processes"].limit == box.pids
    assert found["cpu lately"].limit == 400
    assert found["processes"].used == 1
    with pytest.raises(NotFound):
        await ops.stats.box_stats(BOB, box.id)
    with pytest.raises(NotFound):
        await ops.stats.box_stats(SCOPED, box.id)


async def test_whoami_names_all_workspaces_and_the_tier(sleepy: World) -> None:
    ops = sleepy.operations
    await ops.workspaces.create_workspace(ALICE, "empty")
    await ops.boxes.up(ALICE, "ws1/web")
    who = await ops.stats.whoami(ALICE)
    assert (who.fingerprint, who.tier, who.boxes) == (ALICE.owner, "default", 1)
    assert (who.workspaces, who.busy, who.api_keys) == (("empty", "ws1"), ("ws1",), 0)
