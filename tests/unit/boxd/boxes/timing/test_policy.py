"""Defaults and bounds of grace, idle-timeout and idle-reap."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from boxd.boxes.timing.policy import LONGEST, SHIPPED, SHORTEST, Policy

FLAGS = {"idle_timeout": "--idle-timeout", "idle_reap": "--idle-reap", "grace": "--grace"}


def test_defaults_are_those_of_the_product_spec() -> None:
    assert Policy() == SHIPPED
    assert SHIPPED.idle_timeout == timedelta(minutes=2)
    assert SHIPPED.idle_reap == timedelta(hours=3)
    assert SHIPPED.grace is None


@pytest.mark.parametrize("field", FLAGS)
@pytest.mark.parametrize("value", [SHORTEST, timedelta(days=1), LONGEST])
def test_bounds_are_included(field: str, value: timedelta) -> None:
    stated: dict[str, Any] = {field: value}
    assert getattr(Policy(**stated), field) == value


@pytest.mark.parametrize(("field", "flag"), FLAGS.items())
@pytest.mark.parametrize(
    "value",
    [
        timedelta(0),
        timedelta(seconds=-1),
        timedelta(milliseconds=1500),
        LONGEST + timedelta(seconds=1),
    ],
)
def test_what_is_out_of_bounds_is_named(field: str, flag: str, value: timedelta) -> None:
    stated: dict[str, Any] = {field: value}
    with pytest.raises(ValueError, match=f"{flag} must be a time of whole seconds from 1s to"):
        Policy(**stated)


def test_the_default_grace_is_within_its_own_ceiling() -> None:
    hour = timedelta(hours=1)
    assert Policy(grace=hour, grace_max=hour).grace == hour
    with pytest.raises(ValueError, match="--grace is longer than the maximum of a box, 1h"):
        Policy(grace=2 * hour, grace_max=hour)
