"""Tiers as shipped, and what they refuse."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest

from boxd.boxes.quota import Tier, load_tiers
from boxd.errors import QuotaExceeded


def test_shipped_tiers_are_complete_and_positive() -> None:
    tiers = load_tiers()
    assert "default" in tiers
    for tier in tiers.values():
        for field in fields(Tier):
            value = getattr(tier, field.name)
            if field.name.startswith("deadline"):
                assert isinstance(value, timedelta)
                assert value > timedelta(0)
            else:
                assert isinstance(value, int | float)
                assert value > 0


@pytest.mark.parametrize(
    ("limit", "check"), [("keys", "check_keys"), ("workspaces", "check_workspaces")]
)
def test_limit_is_reached_exactly(limit: str, check: str) -> None:
    three: dict[str, Any] = {limit: 3}
    tier = replace(load_tiers()["default"], **three)
    getattr(tier, check)(2)
    with pytest.raises(QuotaExceeded, match="limit reached: 3 "):
        getattr(tier, check)(3)


def test_remedy_for_too_many_running_boxes_can_be_followed() -> None:
    tier = replace(load_tiers()["default"], running=0)
    with pytest.raises(QuotaExceeded, match="0 running boxes per owner; remove one: rm NAME"):
        tier.check_box([], cpus=1, mem_mb=1, new=False)
