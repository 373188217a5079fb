"""ConnectionLimits of the front door, with the hands of the clock in the test."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_network

import pytest

from boxd.ssh.connection import limits as bounds
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

STRANGER = "203.0.113.9"
LOOPBACK = "127.0.0.1"


@dataclass
class Endpoint:
    """ConnectionLimits with a clock that stands still until it is turned, and who was sent away."""

    seconds: float = 1000.0
    numbers: list[float] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    limits: ConnectionLimits = field(init=False)

    def __post_init__(self) -> None:
        self.limits = ConnectionLimits(self, self.chance, [ip_network("192.0.2.0/24")])

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)

    def monotonic(self) -> float:
        return self.seconds

    def chance(self) -> float:
        return self.numbers.pop(0)

    def knock(self, address: str, name: str = "") -> Slot | None:
        return self.limits.admit(address, lambda: self.gone.append(name or address))

    def place(self, address: str, name: str = "") -> Slot:
        place = self.knock(address, name)
        assert place is not None
        return place

    def enter(self, address: str, owner: str = "me", name: str = "") -> Slot:
        """A connection that has authenticated."""
        place = self.place(address, name)
        assert self.limits.authenticate(place, owner) == ""
        return place

    def make_familiar(self, address: str) -> None:
        """A short command in a box from there."""
        place = self.enter(address)
        with self.limits.holding_box(place):
            pass
        self.limits.release(place, Penalty.NO_AUTH)


def address(number: int) -> str:
    return f"198.51.{number // 250}.{number % 250 + 1}"


def test_a_growing_share_is_dropped_of_sources_that_have_a_place() -> None:
    door = Endpoint()
    for number in range(EARLY_DROP_START):
        door.place(address(number))
    door.numbers = [0.29, 0.31]
    assert door.knock(address(0)) is None
    door.place(address(0))
    for number in range(
        EARLY_DROP_START, PENDING_UNKNOWN - 1
    ):  # the first of a source is asked for no number
        door.place(address(number))
    door.numbers = [0.9999]
    assert door.knock(address(0)) is None
    assert door.numbers == []
    assert door.gone == []


def test_strangers_who_wait_keep_nobody_out() -> None:
    """The oldest place of who holds most is taken back; a newcomer has it."""
    door = Endpoint(numbers=[0.9999] * PENDING_UNKNOWN)
    for number in range(30):
        door.place(STRANGER, f"many {number}")
    for number in range(PENDING_UNKNOWN - 30):
        door.place(address(number))
    for number in range(29):
        door.place(f"203.0.114.{number}")
    assert door.gone == [f"many {number}" for number in range(29)]
    door.place("203.0.114.200")
    assert door.gone[-1] == "many 29"  # all have one: the oldest goes


def test_a_stranger_s_own_place_is_taken_back_when_it_has_too_many() -> None:
    door = Endpoint(numbers=[0.9999] * 100)
    first = door.place(STRANGER, "0")
    for number in range(1, PENDING_PER_SOURCE + 2):
        door.place(STRANGER, str(number))
    assert door.gone == ["0", "1"]
    door.limits.release(first, Penalty.MALFORMED)  # comes late and counts nothing
    for number in range(13):
        door.place(STRANGER, str(number))
    assert door.knock(STRANGER) is None  # 15 seconds of penalty, one for each
    assert len(door.gone) == 15


def test_who_lost_the_place_cannot_stay() -> None:
    door = Endpoint(numbers=[0.9999] * 100)
    first = door.place(STRANGER)
    for _ in range(PENDING_PER_SOURCE):
        door.place(STRANGER)
    assert "make room for a newer one" in door.limits.authenticate(first, "me")


def test_penalties_add_up_are_enforced_and_pass() -> None:
    door = Endpoint()
    for _ in range(2):
        door.limits.release(door.place(STRANGER), Penalty.FAILED_AUTH)
    last = door.place(STRANGER)  # 10 seconds: not yet enforced
    door.limits.release(last, Penalty.FAILED_AUTH)
    assert door.knock(STRANGER) is None
    door.place(address(1))
    door.seconds += 0.5
    door.place(STRANGER)


def test_a_penalty_is_bounded() -> None:
    door = Endpoint(numbers=[0.9999] * 50)
    places = [door.place(STRANGER) for _ in range(30)]
    for place in places:
        door.limits.release(place, Penalty.MALFORMED)
    door.seconds += MAX_PENALTY_S - 16
    assert door.knock(STRANGER) is None
    door.seconds += 2
    door.place(STRANGER)


def test_a_source_that_held_a_box_is_no_stranger_for_a_while() -> None:
    door = Endpoint(numbers=[0.9999] * 100)
    door.make_familiar(STRANGER)
    places = [door.place(STRANGER) for _ in range(PENDING_UNKNOWN)]
    door.limits.release(places[0], Penalty.MALFORMED)
    for number in range(PENDING_UNKNOWN):
        door.place(address(number))
    door.place(STRANGER)
    assert door.gone == []
    door.seconds += KNOWN_FOR_S + 1
    door.limits.release(places[1], Penalty.MALFORMED)
    assert door.knock(STRANGER) is None


def test_a_source_is_no_stranger_as_long_as_it_holds_a_box() -> None:
    door = Endpoint()
    place = door.enter(STRANGER)
    with door.limits.holding_box(place):
        door.seconds += 10 * KNOWN_FOR_S
        for _ in range(PENDING_UNKNOWN + 1):
            door.place(STRANGER)
    assert door.gone == []


def test_a_proved_key_alone_makes_no_source_familiar() -> None:
    """It costs nothing."""
    door = Endpoint()
    door.enter(STRANGER)
    door.limits.release(door.place(STRANGER), Penalty.MALFORMED)
    assert door.knock(STRANGER) is None


@pytest.mark.parametrize("exempt", [LOOPBACK, "::ffff:127.0.0.1", "::1", "192.0.2.77"])
def test_loopback_and_who_the_operator_trusts_know_no_penalty(exempt: str) -> None:
    door = Endpoint()
    places = [door.place(exempt) for _ in range(PENDING_KNOWN)]
    assert door.gone == []
    for place in places:
        door.limits.release(place, Penalty.MALFORMED)
    door.place(exempt)


def test_one_familiar_source_keeps_no_other_out() -> None:
    door = Endpoint()
    door.make_familiar(STRANGER)
    for number in range(PENDING_KNOWN):
        door.place(LOOPBACK, str(number))
    door.place(STRANGER)
    door.place(LOOPBACK)
    assert door.gone == ["0", "1"]


def test_a_key_has_a_bounded_number_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "CONNECTIONS_PER_OWNER", 3)
    door = Endpoint()
    first, *_ = [door.enter(LOOPBACK) for _ in range(3)]
    assert "at most 3 connections of one key" in door.limits.authenticate(
        door.place(LOOPBACK), "me"
    )
    door.enter(LOOPBACK, "you")
    door.limits.release(first, Penalty.NO_AUTH)
    door.enter(LOOPBACK)


def test_a_source_has_a_bounded_number_of_connections() -> None:
    """However many keys it has; those that hold no box make room."""
    door = Endpoint()
    holding = [door.enter(STRANGER, f"key {n}") for n in range(CONNECTIONS_PER_SOURCE - 1)]
    for place in holding:
        place.boxes += 1
    door.enter(STRANGER, "idle", "idle")
    door.enter(STRANGER, "new", "new")
    assert door.gone == ["idle"]
    door.enter(STRANGER, "newer").boxes += 1
    assert door.gone == ["idle", "new"]
    text = door.limits.authenticate(door.place(STRANGER), "late")
    assert text == "at most 200 connections from one address are open at once"
    door.enter(address(1))
    for _ in range(CONNECTIONS_PER_SOURCE + 1):
        door.enter(LOOPBACK)


def test_the_service_has_a_bounded_number_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source with most that hold no box makes room first."""
    monkeypatch.setattr(bounds, "MAX_CONNECTIONS", 6)
    door = Endpoint()
    mine = door.enter(address(1), "me", "mine")
    for number in range(3):
        door.enter(STRANGER, f"key {number}", f"stranger {number}")
    for _ in range(2):
        door.enter(LOOPBACK, "busy").boxes += 1
    door.enter(address(2), "you").boxes += 1
    assert door.gone == ["stranger 0"]
    mine.boxes += 1
    for number in range(2):
        door.enter(address(3 + number), "they").boxes += 1
    assert door.gone == ["stranger 0", "stranger 1", "stranger 2"]
    text = door.limits.authenticate(door.place(address(9)), "late")
    assert text == "at most 6 connections are open at once"


def test_sources_that_are_forgotten_are_the_oldest_without_connections() -> None:
    door = Endpoint()
    staying = address(60_000)
    door.enter(staying).boxes += 1
    for _ in range(4):
        door.limits.release(door.place(STRANGER), Penalty.FAILED_AUTH)
        door.seconds += 0.5
    assert door.knock(STRANGER) is None
    for number in range(MAX_SOURCES):
        other = f"10.{number // 62_500}.{number // 250 % 250}.{number % 250}"
        door.limits.release(door.enter(other), Penalty.NO_AUTH)
    door.place(STRANGER)
    for _ in range(PENDING_UNKNOWN + 1):
        door.place(staying)


def test_channels_of_an_owner() -> None:
    limits = Endpoint().limits
    assert all(limits.open_channel("me") for _ in range(CHANNELS_PER_OWNER))
    assert not limits.open_channel("me")
    assert limits.open_channel("you")
    limits.close_channel("me")
    assert limits.open_channel("me")
