"""Tiers as shipped, and what they refuse."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from boxd.boxes.limits.tier_limits import Tier, load_tiers
from boxd.errors import QuotaExceeded, Unavailable
from boxd.images.recipes import load_flavors
from tests.harness.boxes.records import BOX

if TYPE_CHECKING:
    from pathlib import Path


def test_shipped_tiers_are_complete_and_positive() -> None:
    tiers = load_tiers()
    assert "default" in tiers
    for tier in tiers.values():
        for field in fields(Tier):
            value = getattr(tier, field.name)
            if field.name == "name":
                assert tiers[value] is tier
            elif field.name.startswith("deadline"):
                assert isinstance(value, timedelta)
                assert value > timedelta(0)
            else:
                assert isinstance(value, int | float)
                assert value > 0 or field.name.startswith("drive")


@pytest.mark.parametrize(
    ("limit", "check"),
    [
        ("keys", "check_keys"),
        ("workspaces", "check_workspaces"),
        ("snapshots", "check_snapshots"),
    ],
)
def test_limit_is_reached_exactly(limit: str, check: str) -> None:
    three: dict[str, Any] = {limit: 3}
    tier = replace(load_tiers()["default"], **three)
    getattr(tier, check)(2)
    with pytest.raises(QuotaExceeded, match="limit reached: 3 "):
        getattr(tier, check)(3)


def test_remedy_for_too_many_running_boxes_can_be_followed() -> None:
    tier = replace(load_tiers()["default"], running=0)
    remedy = "suspend one: suspend NAME, or remove one: rm NAME"
    with pytest.raises(QuotaExceeded, match=f"0 running boxes per owner; {remedy}"):
        tier.check_box([], BOX, new=False)


def test_a_larger_disk_than_allowed_is_refused_when_the_box_is_made() -> None:
    tier = replace(load_tiers()["default"], disk_mb=100)
    tier.check_box([], replace(BOX, disk_mb=100), new=True)
    with pytest.raises(QuotaExceeded, match="limit reached: 100 MiB of disk per box; ask for"):
        tier.check_box([], replace(BOX, disk_mb=101), new=True)
    tier.check_box([], replace(BOX, disk_mb=101), new=False)


def test_every_shipped_flavor_fits_the_default_tier() -> None:
    tier = load_tiers()["default"]
    for flavor in load_flavors().by_name.values():
        box = replace(BOX, cpus=flavor.cpus, mem_mb=flavor.mem_mb, disk_mb=flavor.disk_mb)
        tier.check_box([], box, new=True)


def test_the_operators_limits_stand_over_the_shipped_ones(tmp_path: Path) -> None:
    own = tmp_path / "tiers.toml"
    shipped = load_tiers(own)["default"]
    own.write_text('[default]\nboxes = 3\ncpus = 1.5\ndrive_mb = 0\ndeadline_max = "2h"\n')
    wanted = replace(shipped, boxes=3, cpus=1.5, drive_mb=0, deadline_max=timedelta(hours=2))
    assert load_tiers(own)["default"] == wanted


def test_a_tier_has_the_default_limits_but_for_those_that_it_gives(tmp_path: Path) -> None:
    own = tmp_path / "tiers.toml"
    shipped = load_tiers()
    assert sorted(shipped) == ["default", "large", "small"]
    assert shipped["small"].boxes < shipped["default"].boxes < shipped["large"].boxes
    assert shipped["large"].deadline_max == shipped["default"].deadline_max
    own.write_text(
        '[default]\nkeys = 7\ndeadline_max = "1h"\n[golden]\nboxes = 3\n[small]\nkeys = 1'
    )
    tiers = load_tiers(own)
    hour = timedelta(hours=1)
    default = replace(shipped["default"], keys=7, deadline_max=hour)
    assert tiers == {
        "default": default,
        "golden": replace(default, name="golden", boxes=3),
        "small": replace(shipped["small"], keys=1, deadline_max=hour),
        "large": replace(shipped["large"], deadline_max=hour),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("boxes = 3", "'boxes' is outside of a tier"),
        ("[Golden]\nboxes = 3", "'Golden' cannot be a tier"),
        ('["a.b"]\nboxes = 3', "'a.b' cannot be a tier"),
        ("[golden]\nboxen = 3", "tier golden: 'boxen' is not a limit"),
        ("[golden]\nboxes = 0", "golden.boxes: 0 is not a number of 1 or more"),
        ("[golden]\ndrive_mb = 3", "golden.drive_mb: the limits of [default] apply to all drives"),
        ("[default]\nboxen = 3", "'boxen' is not a limit; limits: boxes, cpus"),
        ("[default]\nboxes = 0", "default.boxes: 0 is not a number of 1 or more"),
        ("[default]\nboxes = true", "default.boxes: True is not a number"),
        ("[default]\nboxes = 1.5", "default.boxes: 1.5 is not a number"),
        ("[default]\ndrive_mb = -1", "-1 is not a number of 0 or more"),
        ("[default]\ndeadline_max = 5", "default.deadline_max"),
        ("[default", "Expected"),
    ],
)
def test_wrong_limits_name_the_file_and_what_is_wrong(text: str, said: str, tmp_path: Path) -> None:
    own = tmp_path / "tiers.toml"
    own.write_text(text)
    with pytest.raises(Unavailable, match=str(own)) as refused:
        load_tiers(own)
    assert said in str(refused.value)
