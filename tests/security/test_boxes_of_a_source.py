"""Whoever makes a new key for each box has no more running boxes than one address may."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from boxd.boxes.limits import source_addresses, tier_limits

if TYPE_CHECKING:
    import pytest

    from tests.harness.ssh.frontdoor import Entrance


async def test_one_address_has_so_many_running_boxes_with_any_keys(
    front_door: Entrance, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Loopback is all that a test has, and the service takes it for any other network.
    monkeypatch.setattr(source_addresses, "is_exempt", lambda *_: False)
    monkeypatch.setattr(tier_limits, "RUNNING_PER_SOURCE", 2)
    tier = replace(front_door.tiers.of("anybody"), running=1)
    monkeypatch.setattr(front_door.tiers, "_known", {"default": tier})
    first, second, third = (front_door.new_client(name) for name in ("one", "two", "three"))
    assert (await first.run("web", "echo in")).text == "in\n"
    assert (await second.run("cli", "up web")).status == 0
    refused = await third.run("web", "true")
    assert (refused.status, refused.stdout) == (255, b"")
    assert "limit reached: 2 running boxes from your address" in refused.errors
    # What runs stays within reach.
    assert (await first.run("web", "echo again")).text == "again\n"
    assert (await second.run("cli", "rm web")).status == 0
    assert (await third.run("web", "echo in")).text == "in\n"
