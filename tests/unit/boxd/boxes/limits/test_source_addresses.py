"""Running boxes of one address, whoever owns them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from ipaddress import ip_network
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.limits import source_addresses, tier_limits
from boxd.boxes.limits.source_addresses import SourceAddresses
from boxd.errors import QuotaExceeded
from boxd.principal import Principal
from tests.harness.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from boxd.model.view import BoxView

HERE, NEXT_DOOR, ELSEWHERE = "203.0.113.9", "2001:db8:1:2::9", "192.0.2.1"
MOST = 3


@pytest.fixture
async def bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A core where an owner has one running box, and an address three."""
    monkeypatch.setattr(tier_limits, "RUNNING_PER_SOURCE", MOST)
    made = World(tmp_path, suspends=True, tier=lambda tier: replace(tier, running=1))
    await made.start()
    try:
        yield made
    finally:
        await made.close()


async def up(world: World, number: int, address: str = HERE) -> BoxView:
    """The one box of an owner who comes from an address."""
    owner = Principal(f"SHA256:{number}", None, "ssh_key")
    world.operations.callers.came(owner, address)
    return await world.operations.boxes.up(owner, "web")


async def refused(world: World, number: int, address: str = HERE) -> None:
    """There is no room for one more."""
    with pytest.raises(QuotaExceeded, match="3 running boxes from your address"):
        await up(world, number, address)


async def test_a_new_key_for_each_box_brings_no_more(bounded: World) -> None:
    for number in range(MOST):
        await up(bounded, number)
    await refused(bounded, MOST)
    assert len(await bounded.store.all_boxes()) == MOST
    await up(bounded, 0)
    await up(bounded, MOST, ELSEWHERE)


async def test_at_once_as_well(bounded: World) -> None:
    made = await asyncio.gather(
        *(up(bounded, number) for number in range(3 * MOST)), return_exceptions=True
    )
    assert sum(isinstance(one, QuotaExceeded) for one in made) == 2 * MOST


async def test_boxes_that_sleep_or_are_gone_do_not_count(bounded: World) -> None:
    boxes = [await up(bounded, number) for number in range(MOST)]
    for number, leave in (
        (0, bounded.operations.boxes.suspend),
        (1, bounded.operations.boxes.remove),
    ):
        await refused(bounded, 10 + number)
        await leave(Principal(f"SHA256:{number}", None, "ssh_key"), boxes[number].id)
        await up(bounded, 10 + number)
    # Who wakes it needs room, too.
    await refused(bounded, 0)


async def test_a_box_that_did_not_start_does_not_count(bounded: World) -> None:
    bounded.steps.failing["backend.start"] = OSError("no")
    for number in range(MOST):
        with pytest.raises(OSError, match="no"):
            await up(bounded, number)
    bounded.steps.failing.clear()
    for number in range(MOST):
        await up(bounded, number)
    await refused(bounded, MOST)


async def test_one_network_of_ipv6_is_one_address(bounded: World) -> None:
    for number in range(MOST):
        await up(bounded, number, NEXT_DOOR + str(number))
    await refused(bounded, MOST, NEXT_DOOR)


async def test_an_owner_has_what_the_tier_gives(bounded: World) -> None:
    for number in range(MOST):
        await up(bounded, number)
    bounded.tiers["SHA256:9"] = replace(bounded.tier, running=MOST + 1)
    await up(bounded, 9)


async def test_where_a_box_was_started_from_stays(bounded: World) -> None:
    for number in range(MOST):
        await up(bounded, number)
    for number in range(MOST):
        await up(bounded, number, ELSEWHERE)
    await refused(bounded, MOST)


def addresses(known: SourceAddresses) -> list[str | None]:
    """Where owners came from, as it is remembered."""
    return list(known._owners.values())


def test_who_is_trusted_comes_from_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    known = SourceAddresses([ip_network("203.0.113.0/24")])
    for number, address in enumerate(["127.0.0.1", HERE, "", ELSEWHERE]):
        known.came(str(number), address)
    assert addresses(known) == [None, None, None, ELSEWHERE]
    monkeypatch.setattr(source_addresses, "REMEMBERED", 4)
    known.came("0", NEXT_DOOR)
    known.came("4", NEXT_DOOR)
    assert addresses(known) == [None, ELSEWHERE, "2001:db8:1:2::/64", "2001:db8:1:2::/64"]
