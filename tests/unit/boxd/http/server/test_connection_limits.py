"""Who keeps a connection when there are too many."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field
from ipaddress import ip_network

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from boxd.errors import QuotaExceeded
from boxd.http.server import connection_limits as limits
from boxd.http.server.connection_limits import ConnectionLimits, Slot


@dataclass
class Crowd:
    """Connections, and which of them were cut."""

    places: ConnectionLimits
    cut: list[str] = field(default_factory=list)

    def come(self, address: str, name: str = "") -> Slot:
        """A new one, that gets a place."""
        place = self.places.admit(address, lambda: self.cut.append(name or address))
        assert place is not None
        return place


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Crowd:
    """Ten places, six for strangers, three of a source."""
    monkeypatch.setattr(limits, "STRANGERS", 6)
    monkeypatch.setattr(limits, "PER_SOURCE", 3)
    return Crowd(ConnectionLimits([ip_network("192.0.2.0/24")], most=10))


def test_a_source_of_strangers_keeps_its_newest(small: Crowd) -> None:
    for number in range(5):
        small.come("198.51.100.1", f"connection {number}")
    assert small.cut == ["connection 0", "connection 1"]


def test_an_ipv6_network_is_one_source(small: Crowd) -> None:
    for number in range(5):
        small.come(f"2001:db8::{number}")
    assert small.cut == ["2001:db8::0", "2001:db8::1"]


def test_all_strangers_take_from_who_holds_most(small: Crowd) -> None:
    small.come("198.51.100.9")
    small.come("198.51.100.8")
    for number in range(3):
        small.come("198.51.100.1", f"greedy {number}")
    small.come("198.51.100.7")
    assert small.cut == []
    small.come("198.51.100.6")
    small.come("198.51.100.5")
    assert small.cut == ["greedy 0", "greedy 1"]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "192.0.2.7"])
def test_loopback_and_trusted_proxies_are_bounded_in_all_only(small: Crowd, address: str) -> None:
    kept = [small.come(address, f"{number}") for number in range(10)]
    assert small.cut == []
    small.come(address)
    assert small.cut == ["0"]
    kept[0].left()
    assert small.cut == ["0"]


def test_room_is_made_by_strangers_first(small: Crowd) -> None:
    small.come("198.51.100.1", "stranger")
    for number in range(9):
        small.come("127.0.0.1", f"proxy {number}")
    small.come("127.0.0.1")
    small.come("127.0.0.1")
    assert small.cut == ["stranger", "proxy 0"]


def test_who_is_served_keeps_the_place_until_it_is_idle_again(small: Crowd) -> None:
    busy = [small.come("198.51.100.1", f"busy {number}") for number in range(2)]
    for place in busy:
        place.begin("alice")
    for number in range(4):
        small.come("198.51.100.1", f"idle {number}")
    assert small.cut == ["idle 0"]
    busy[0].end()
    assert small.cut == ["idle 0"]
    small.come("198.51.100.1")
    small.come("198.51.100.1")
    small.come("198.51.100.1")
    assert small.cut == ["idle 0", "idle 1", "idle 2", "idle 3"]
    small.come("198.51.100.1")
    assert small.cut[-1] == "busy 0"
    assert busy[1].owner == "alice"


def test_with_all_places_busy_a_newcomer_has_to_go(small: Crowd) -> None:
    kept = []
    for number in range(10):
        kept.append(small.come("127.0.0.1"))
        kept[-1].begin(f"owner {number}")
    assert small.places.admit("127.0.0.1", lambda: small.cut.append("?")) is None
    kept[3].left()
    small.come("127.0.0.1")
    assert small.cut == []


def test_one_owner_has_a_part_only(small: Crowd) -> None:
    for _ in range(2):
        small.come("127.0.0.1").begin("alice")
    third = small.come("127.0.0.1")
    with pytest.raises(QuotaExceeded, match="at most 2 requests of one owner"):
        third.begin("alice")
    third.end()
    small.come("127.0.0.1").begin("bob")


def test_a_place_that_was_taken_back_is_never_counted_again(small: Crowd) -> None:
    first = small.come("198.51.100.1", "first")
    for _ in range(3):
        small.come("198.51.100.1")
    assert small.cut == ["first"]
    first.begin("alice")
    assert first.owner == ""
    first.end()
    first.left()


def test_few_files_mean_few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (40, 40))
    crowd = Crowd(ConnectionLimits())
    for number in range(11):
        crowd.come("127.0.0.1", f"{number}")
    assert crowd.cut == ["0"]


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order: counts are those of a plain model."""

    present = Bundle("present")

    def __init__(self) -> None:
        super().__init__()
        self.crowd = ConnectionLimits(most=12)
        self.open: dict[Slot, str] = {}

    @rule(target=present, source=st.integers(0, 4), local=st.booleans())
    def come(self, source: int, local: bool) -> object:
        """A connection."""
        address = "127.0.0.1" if local else f"198.51.100.{source}"
        box: list[Slot] = []

        def cut() -> None:
            del self.open[box[0]]

        place = self.crowd.admit(address, cut)
        if place is None:
            assert all(self.open.values())
            return multiple()
        box.append(place)
        self.open[place] = ""
        return place

    @rule(place=present, owner=st.sampled_from("abcdef"))
    def begin(self, place: Slot, owner: str) -> None:
        """A request with a key."""
        taken = list(self.open.values()).count(owner)
        try:
            place.begin(owner)
        except QuotaExceeded:
            assert taken == 3
        else:
            if place in self.open and not self.open[place]:
                assert taken < 3
                self.open[place] = owner

    @rule(place=present)
    def end(self, place: Slot) -> None:
        """Its answer."""
        place.end()
        if place in self.open:
            self.open[place] = ""

    @rule(place=present)
    def leave(self, place: Slot) -> None:
        """The client goes."""
        place.left()
        self.open.pop(place, None)

    @invariant()
    def counts_agree(self) -> None:
        """Bounds hold, and nothing is counted twice or forgotten."""
        idle = len(self.crowd._strangers) + len(self.crowd._others)
        assert idle == list(self.open.values()).count("")
        assert self.crowd._busy.total() == len(self.open) - idle
        assert len(self.open) <= 12


TestAnyOrder = AnyOrder.TestCase
