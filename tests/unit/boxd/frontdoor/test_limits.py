"""Limits of the front door, with the hands of the clock in the test."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from boxd.frontdoor.limits import (
    CHANNELS_PER_OWNER,
    FULL,
    MOST_S,
    PER_SOURCE,
    REMEMBERED,
    START,
    TRUSTED_FOR_S,
    Ending,
    Limits,
    source_of,
)

STRANGER = "203.0.113.9"


@dataclass
class Hands:
    """A clock that stands still until it is turned."""

    seconds: float = 1000.0
    numbers: list[float] = field(default_factory=list)

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)

    def monotonic(self) -> float:
        return self.seconds

    def chance(self) -> float:
        return self.numbers.pop(0)


def address(number: int) -> str:
    return f"198.51.{number // 250}.{number % 250 + 1}"


def test_a_growing_share_of_strangers_is_dropped_until_all_are() -> None:
    hands = Hands()
    limits = Limits(hands, hands.chance)
    assert all(limits.admit(address(n)) for n in range(START))
    hands.numbers = [0.29]
    assert not limits.admit(address(START))
    hands.numbers = [0.31] + [0.9999] * (FULL - START - 1)
    assert all(limits.admit(address(n)) for n in range(START, FULL))
    assert hands.numbers == []
    assert not limits.admit("127.0.0.1")
    limits.ended(address(0), Ending.NO_AUTH)
    assert limits.admit("127.0.0.1")


def test_one_source_has_a_bounded_number_of_unauthenticated_connections() -> None:
    hands = Hands(numbers=[0.9999] * 100)
    limits = Limits(hands, hands.chance)
    assert all(limits.admit(STRANGER) for _ in range(PER_SOURCE))
    assert not limits.admit(STRANGER)
    limits.authenticated(STRANGER)
    assert limits.admit(STRANGER)


def test_penalties_add_up_are_enforced_and_pass() -> None:
    hands = Hands()
    limits = Limits(hands, hands.chance)
    for _ in range(2):
        assert limits.admit(STRANGER)
        limits.ended(STRANGER, Ending.FAILED_AUTH)
    assert limits.admit(STRANGER)  # 10 seconds: not yet enforced
    limits.ended(STRANGER, Ending.FAILED_AUTH)
    assert not limits.admit(STRANGER)
    assert limits.admit(address(1))
    hands.seconds += 0.5
    assert limits.admit(STRANGER)


def test_a_penalty_is_bounded() -> None:
    hands = Hands(numbers=[0.9999] * 50)
    limits = Limits(hands, hands.chance)
    for _ in range(30):
        assert limits.admit(STRANGER)
    for _ in range(30):
        limits.ended(STRANGER, Ending.MALFORMED)
    hands.seconds += MOST_S - 16
    assert not limits.admit(STRANGER)
    hands.seconds += 2
    assert limits.admit(STRANGER)


def test_a_source_that_authenticated_is_not_dropped_early_for_a_while() -> None:
    hands = Hands()
    limits = Limits(hands, hands.chance)
    assert limits.admit(STRANGER)
    limits.authenticated(STRANGER)
    assert all(limits.admit(address(n)) for n in range(START))
    assert limits.admit(STRANGER)  # asks for no random number
    hands.seconds += TRUSTED_FOR_S + 1
    hands.numbers = [0.0]
    assert not limits.admit(STRANGER)


def test_loopback_knows_no_penalty_and_no_early_drop() -> None:
    hands = Hands()
    limits = Limits(hands, hands.chance)
    for _ in range(FULL):
        assert limits.admit("::ffff:127.0.0.1")
    for _ in range(FULL):
        limits.ended("::ffff:127.0.0.1", Ending.MALFORMED)
    assert limits.admit("127.0.0.1")


def test_sources_that_are_forgotten_are_the_oldest() -> None:
    hands = Hands()
    limits = Limits(hands, hands.chance)
    for _ in range(4):
        assert limits.admit(STRANGER)
        limits.ended(STRANGER, Ending.FAILED_AUTH)
        hands.seconds += 0.5
    assert not limits.admit(STRANGER)
    for number in range(REMEMBERED):
        other = f"10.{number // 62_500}.{number // 250 % 250}.{number % 250}"
        assert limits.admit(other)
        limits.authenticated(other)
    assert limits.admit(STRANGER)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("not an address", "not an address"),
    ],
)
def test_sources(text: str, source: str) -> None:
    assert source_of(text) == source


def test_channels_of_an_owner() -> None:
    hands = Hands()
    limits = Limits(hands, hands.chance)
    assert all(limits.open_channel("me") for _ in range(CHANNELS_PER_OWNER))
    assert not limits.open_channel("me")
    assert limits.open_channel("you")
    limits.close_channel("me")
    assert limits.open_channel("me")
