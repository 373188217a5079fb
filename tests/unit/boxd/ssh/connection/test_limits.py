"""Limits on connections, with a clock that the test controls."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_network

import pytest

from boxd.ssh.connection import limits as limits_module
from boxd.ssh.connection.limits import (
    CHANNELS_PER_OWNER,
    CONNECTIONS_PER_SOURCE,
    EARLY_DROP_START,
    KNOWN_FOR_S,
    MAX_PENALTY_S,
    MAX_SOURCES,
    PENDING_KNOWN,
    PENDING_PER_SOURCE,
    PENDING_UNKNOWN,
    ConnectionLimits,
    Penalty,
    Slot,
)

UNKNOWN = "203.0.113.9"
LOOPBACK = "127.0.0.1"


@dataclass
class Harness:
    """Limits with a manual clock and chosen random numbers, and the names of ended connections."""

    seconds: float = 1000.0
    numbers: list[float] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    limits: ConnectionLimits = field(init=False)

    def __post_init__(self) -> None:
        self.limits = ConnectionLimits(self, self.chance, [ip_network("192.0.2.0/24")])

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)

    def monotonic(self) -> float:
        return self.seconds

    def chance(self) -> float:
        return self.numbers.pop(0)

    def admit(self, address: str, name: str = "") -> Slot | None:
        return self.limits.admit(address, lambda: self.ended.append(name or address))

    def slot(self, address: str, name: str = "") -> Slot:
        slot = self.admit(address, name)
        assert slot is not None
        return slot

    def authenticated(self, address: str, owner: str = "me", name: str = "") -> Slot:
        """Return the slot of a connection that has authenticated."""
        slot = self.slot(address, name)
        assert self.limits.authenticate(slot, owner) == ""
        return slot

    def make_known(self, address: str) -> None:
        """Run a short command in a box from this address."""
        slot = self.authenticated(address)
        with self.limits.holding_box(slot):
            pass
        self.limits.release(slot, Penalty.NO_AUTH)


def address(number: int) -> str:
    return f"198.51.{number // 250}.{number % 250 + 1}"


def test_a_growing_share_of_further_connections_of_a_source_is_dropped() -> None:
    harness = Harness()
    for number in range(EARLY_DROP_START):
        harness.slot(address(number))
    harness.numbers = [0.29, 0.31]
    assert harness.admit(address(0)) is None
    harness.slot(address(0))
    # The first connection of a source takes no random number.
    for number in range(EARLY_DROP_START, PENDING_UNKNOWN - 1):
        harness.slot(address(number))
    harness.numbers = [0.9999]
    assert harness.admit(address(0)) is None
    assert harness.numbers == []
    assert harness.ended == []


def test_idle_connections_do_not_lock_out_newcomers() -> None:
    """A newcomer gets the oldest slot of the source that occupies most."""
    harness = Harness(numbers=[0.9999] * PENDING_UNKNOWN)
    for number in range(30):
        harness.slot(UNKNOWN, f"many {number}")
    for number in range(PENDING_UNKNOWN - 30):
        harness.slot(address(number))
    for number in range(29):
        harness.slot(f"203.0.114.{number}")
    assert harness.ended == [f"many {number}" for number in range(29)]
    harness.slot("203.0.114.200")
    assert harness.ended[-1] == "many 29"  # each source has one slot, so the oldest ends


def test_a_source_with_too_many_slots_loses_its_oldest() -> None:
    harness = Harness(numbers=[0.9999] * 100)
    first = harness.slot(UNKNOWN, "0")
    for number in range(1, PENDING_PER_SOURCE + 2):
        harness.slot(UNKNOWN, str(number))
    assert harness.ended == ["0", "1"]
    harness.limits.release(first, Penalty.MALFORMED)  # comes late and has no effect
    for number in range(13):
        harness.slot(UNKNOWN, str(number))
    assert harness.admit(UNKNOWN) is None  # 15 seconds of penalty, one for each eviction
    assert len(harness.ended) == 15


def test_a_connection_that_lost_its_slot_cannot_authenticate() -> None:
    harness = Harness(numbers=[0.9999] * 100)
    first = harness.slot(UNKNOWN)
    for _ in range(PENDING_PER_SOURCE):
        harness.slot(UNKNOWN)
    assert "make room for a newer one" in harness.limits.authenticate(first, "me")


def test_penalties_add_up_apply_and_expire() -> None:
    harness = Harness()
    for _ in range(2):
        harness.limits.release(harness.slot(UNKNOWN), Penalty.FAILED_AUTH)
    last = harness.slot(UNKNOWN)  # 10 seconds: not yet enforced
    harness.limits.release(last, Penalty.FAILED_AUTH)
    assert harness.admit(UNKNOWN) is None
    harness.slot(address(1))
    harness.seconds += 0.5
    harness.slot(UNKNOWN)


def test_a_penalty_is_bounded() -> None:
    harness = Harness(numbers=[0.9999] * 50)
    slots = [harness.slot(UNKNOWN) for _ in range(30)]
    for slot in slots:
        harness.limits.release(slot, Penalty.MALFORMED)
    harness.seconds += MAX_PENALTY_S - 16
    assert harness.admit(UNKNOWN) is None
    harness.seconds += 2
    harness.slot(UNKNOWN)


def test_a_source_that_held_a_box_stays_known_for_a_while() -> None:
    harness = Harness(numbers=[0.9999] * 100)
    harness.make_known(UNKNOWN)
    slots = [harness.slot(UNKNOWN) for _ in range(PENDING_UNKNOWN)]
    harness.limits.release(slots[0], Penalty.MALFORMED)
    for number in range(PENDING_UNKNOWN):
        harness.slot(address(number))
    harness.slot(UNKNOWN)
    assert harness.ended == []
    harness.seconds += KNOWN_FOR_S + 1
    harness.limits.release(slots[1], Penalty.MALFORMED)
    assert harness.admit(UNKNOWN) is None


def test_a_source_is_known_while_it_holds_a_box() -> None:
    harness = Harness()
    slot = harness.authenticated(UNKNOWN)
    with harness.limits.holding_box(slot):
        harness.seconds += 10 * KNOWN_FOR_S
        for _ in range(PENDING_UNKNOWN + 1):
            harness.slot(UNKNOWN)
    assert harness.ended == []


def test_a_proved_key_alone_does_not_make_a_source_known() -> None:
    """A key costs nothing."""
    harness = Harness()
    harness.authenticated(UNKNOWN)
    harness.limits.release(harness.slot(UNKNOWN), Penalty.MALFORMED)
    assert harness.admit(UNKNOWN) is None


@pytest.mark.parametrize("exempt", [LOOPBACK, "::ffff:127.0.0.1", "::1", "192.0.2.77"])
def test_loopback_and_trusted_networks_get_no_penalty(exempt: str) -> None:
    harness = Harness()
    slots = [harness.slot(exempt) for _ in range(PENDING_KNOWN)]
    assert harness.ended == []
    for slot in slots:
        harness.limits.release(slot, Penalty.MALFORMED)
    harness.slot(exempt)


def test_one_known_source_does_not_lock_out_others() -> None:
    harness = Harness()
    harness.make_known(UNKNOWN)
    for number in range(PENDING_KNOWN):
        harness.slot(LOOPBACK, str(number))
    harness.slot(UNKNOWN)
    harness.slot(LOOPBACK)
    assert harness.ended == ["0", "1"]


def test_a_key_has_a_bounded_number_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "CONNECTIONS_PER_OWNER", 3)
    harness = Harness()
    first, *_ = [harness.authenticated(LOOPBACK) for _ in range(3)]
    assert "at most 3 connections of one key" in harness.limits.authenticate(
        harness.slot(LOOPBACK), "me"
    )
    harness.authenticated(LOOPBACK, "you")
    harness.limits.release(first, Penalty.NO_AUTH)
    harness.authenticated(LOOPBACK)


def test_a_source_has_a_bounded_number_of_connections() -> None:
    """The limit holds for any number of keys; connections without a box end first."""
    harness = Harness()
    slots = [harness.authenticated(UNKNOWN, f"key {n}") for n in range(CONNECTIONS_PER_SOURCE - 1)]
    for slot in slots:
        slot.boxes += 1
    harness.authenticated(UNKNOWN, "idle", "idle")
    harness.authenticated(UNKNOWN, "new", "new")
    assert harness.ended == ["idle"]
    harness.authenticated(UNKNOWN, "newer").boxes += 1
    assert harness.ended == ["idle", "new"]
    text = harness.limits.authenticate(harness.slot(UNKNOWN), "late")
    assert text == "at most 200 connections from one address are open at once"
    harness.authenticated(address(1))
    for _ in range(CONNECTIONS_PER_SOURCE + 1):
        harness.authenticated(LOOPBACK)


def test_the_service_has_a_bounded_number_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source with most connections without a box loses one first."""
    monkeypatch.setattr(limits_module, "MAX_CONNECTIONS", 6)
    harness = Harness()
    mine = harness.authenticated(address(1), "me", "mine")
    for number in range(3):
        harness.authenticated(UNKNOWN, f"key {number}", f"unknown {number}")
    for _ in range(2):
        harness.authenticated(LOOPBACK, "busy").boxes += 1
    harness.authenticated(address(2), "you").boxes += 1
    assert harness.ended == ["unknown 0"]
    mine.boxes += 1
    for number in range(2):
        harness.authenticated(address(3 + number), "they").boxes += 1
    assert harness.ended == ["unknown 0", "unknown 1", "unknown 2"]
    text = harness.limits.authenticate(harness.slot(address(9)), "late")
    assert text == "at most 6 connections are open at once"


def test_the_oldest_sources_without_connections_are_evicted() -> None:
    harness = Harness()
    busy = address(60_000)
    harness.authenticated(busy).boxes += 1
    for _ in range(4):
        harness.limits.release(harness.slot(UNKNOWN), Penalty.FAILED_AUTH)
        harness.seconds += 0.5
    assert harness.admit(UNKNOWN) is None
    for number in range(MAX_SOURCES):
        other = f"10.{number // 62_500}.{number // 250 % 250}.{number % 250}"
        harness.limits.release(harness.authenticated(other), Penalty.NO_AUTH)
    harness.slot(UNKNOWN)
    for _ in range(PENDING_UNKNOWN + 1):
        harness.slot(busy)


def test_channels_of_an_owner() -> None:
    limits = Harness().limits
    assert all(limits.open_channel("me") for _ in range(CHANNELS_PER_OWNER))
    assert not limits.open_channel("me")
    assert limits.open_channel("you")
    limits.close_channel("me")
    assert limits.open_channel("me")
