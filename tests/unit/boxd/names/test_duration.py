"""Durations: reading, writing, limits."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd.errors import BadName
from boxd.names.duration import MAX_DURATION, format_duration, parse_duration
from tests.harness.strategies import DURATIONS
from tests.unit.boxd.names.refusal import value_or_refusal


@given(DURATIONS)
def test_what_is_written_is_read_back(value: timedelta) -> None:
    assert parse_duration(format_duration(value)) == value


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("30m", 1800),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1d", 86_400),
        ("1D2H3M4S", 93_784),
        ("0h5m", 300),
        ("3650d", 315_360_000),
    ],
)
def test_forms(text: str, seconds: int) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["3651d", "9999d", "999999999d"])
def test_a_duration_with_a_ceiling_is_clamped(text: str) -> None:
    assert parse_duration(text, clamps=True) == MAX_DURATION


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not valid"),
        ("5", "not valid"),
        ("m", "not valid"),
        ("5m1h", "not valid"),
        ("-5m", "not valid"),
        ("1.5h", "not valid"),
        (" 5m", "not valid"),
        ("5m\n", "not valid"),
        ("\u0665m", "not valid"),
        ("1234567890s", "not valid"),
        ("0s", "must be positive"),
        ("0d0h", "must be positive"),
        ("3651d", "longer than 10 years"),
        ("3650d1s", "longer than 10 years"),
    ],
)
def test_refusals(text: str, says: str) -> None:
    with pytest.raises(BadName, match=says) as refusal:
        parse_duration(text, "key ttl")
    assert str(refusal.value).startswith("key ttl")
    assert "1h30m" in str(refusal.value)


@pytest.mark.parametrize(
    "value",
    [timedelta(0), timedelta(seconds=-1), timedelta(seconds=1.5), timedelta(microseconds=1)],
)
def test_only_whole_positive_seconds_are_written(value: timedelta) -> None:
    with pytest.raises(ValueError, match="whole seconds"):
        format_duration(value)


@given(st.text(max_size=60))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    value = value_or_refusal(lambda: parse_duration(text))
    assert value is None or timedelta(0) < value <= MAX_DURATION
