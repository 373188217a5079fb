"""Who gets a place at the door, and which place is taken back when there are too many.

A connection that has not authenticated has a place. Sources that lately reached a box of theirs,
loopback, and those that the operator trusts take theirs from another stock than strangers do, so
that strangers fill only their own. Where a stock is full, the oldest place of the source that holds
most is taken back, and a newcomer gets it: who waits without a word cannot keep others out.

A source that misbehaves collects seconds of penalty, as OpenSSH's server does it, and as a stranger
is not let in while enough of them are outstanding.

A key costs nothing, so connections that have authenticated are bounded, too: of an owner, of a
source, and in whole. Those that hold no box make room first.

No method awaits, so each is atomic on the event loop.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from boxd.names.source import is_exempt, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from boxd.clock import Clock
    from boxd.names.source import Network

START, RATE, FULL = 10, 0.30, 100
"""Places for strangers. Above START a share of RATE, growing to all at FULL, of the connections is
dropped whose source has a place already."""
PER_SOURCE = 32
"""Places of one source of strangers."""
FAMILIAR = 500
"""Places for all sources that are no strangers'."""
ENFORCED_FROM_S = 15.0
"""Outstanding seconds of penalty from which a stranger is not let in."""
MOST_S = 600.0
FAMILIAR_FOR_S = 3600.0
"""How long a source is no stranger's after it held a box."""
REMEMBERED = 10_000
"""Sources kept in memory; the oldest without connections are forgotten first."""

GUESTS = 2000
"""Connections that have authenticated, in whole."""
GUESTS_PER_SOURCE = 200
"""Those of one source that is neither loopback nor trusted by the operator."""
GUESTS_PER_OWNER = 256
CHANNELS_PER_OWNER = 200


class Ending(Enum):
    """How a connection ended that did not authenticate; the value is its penalty in seconds."""

    FAILED_AUTH = 5.0
    NO_AUTH = 1.0
    GRACE_EXCEEDED = 10.0
    MALFORMED = 90.0


@dataclass(eq=False, slots=True)
class Place:
    """One connection, until it is counted out by `Limits.ended`."""

    source: Source
    leave: Callable[[], None]
    """Ends the connection; what it calls comes back as `ended` later, or never."""
    owner: str = ""
    """Whose key was proved."""
    boxes: int = 0
    """How many channels of it hold a box."""


@dataclass(eq=False, slots=True)
class Source:
    """`until`: end of the penalty. Times are monotonic seconds. Places are in order of arrival."""

    exempt: bool
    """Loopback, or trusted by the operator: knows no penalty and no bound of its own."""
    pending: dict[Place, None] = field(default_factory=dict)
    guests: dict[Place, None] = field(default_factory=dict)
    until: float = 0.0
    familiar_until: float = 0.0


class Limits:
    """Counts of one listener. `chance` returns a number in [0, 1)."""

    def __init__(
        self,
        clock: Clock,
        chance: Callable[[], float] | None = None,
        trusted: Iterable[Network] = (),
    ) -> None:
        self._clock = clock
        self._chance = chance if chance is not None else random.SystemRandom().random
        self._trusted = tuple(trusted)
        self._strangers: dict[Place, None] = {}
        self._familiars: dict[Place, None] = {}
        self._guests: dict[Place, None] = {}
        self._sources: OrderedDict[str, Source] = OrderedDict()
        self._owners: Counter[str] = Counter()
        self._channels: Counter[str] = Counter()

    def admit(self, address: str, leave: Callable[[], None]) -> Place | None:
        """A place for a new connection, or None if it is not let in.

        `leave` is called when the place is taken back before the key is proved.
        """
        source = self._source(address)
        stock = self._familiars
        if not self._is_familiar(source):
            stock = self._strangers
            if source.until - self._clock.monotonic() >= ENFORCED_FROM_S:
                return None
            if source.pending and self._dropped_early():
                return None
            if len(source.pending) >= PER_SOURCE:
                self._take_back(next(iter(source.pending)))
        if len(stock) >= (FULL if stock is self._strangers else FAMILIAR):
            self._take_back(_oldest_of_the_fullest(stock))
        place = Place(source, leave)
        stock[place] = source.pending[place] = None
        return place

    def authenticated(self, place: Place, owner: str) -> str:
        """The connection has proved its key. Why it cannot stay, or an empty text."""
        if not self._vacate(place):
            return "the connection has lost its place"
        source = place.source
        if self._owners[owner] >= GUESTS_PER_OWNER:
            return f"at most {GUESTS_PER_OWNER} connections of one key are open at once"
        if (
            not source.exempt
            and len(source.guests) >= GUESTS_PER_SOURCE
            and not self._send_away(source.guests)
        ):
            return f"at most {GUESTS_PER_SOURCE} connections from one address are open at once"
        if len(self._guests) >= GUESTS and not self._send_away(self._guests):
            return f"at most {GUESTS} connections are open at once"
        place.owner = owner
        self._owners[owner] += 1
        self._guests[place] = source.guests[place] = None
        return ""

    def ended(self, place: Place, ending: Ending) -> None:
        """The connection is gone; `ending` counts if it had not authenticated."""
        if place in self._guests:
            self._count_out(place)
        elif self._vacate(place):
            self._punish(place.source, ending)

    @contextlib.contextmanager
    def holding_box(self, place: Place) -> Iterator[None]:
        """A channel of the connection holds a box while the context lasts."""
        place.boxes += 1
        try:
            yield
        finally:
            place.boxes -= 1
            place.source.familiar_until = self._clock.monotonic() + FAMILIAR_FOR_S

    def open_channel(self, owner: str) -> bool:
        """Counts one more channel of the owner unless that is too many."""
        if self._channels[owner] >= CHANNELS_PER_OWNER:
            return False
        self._channels[owner] += 1
        return True

    def close_channel(self, owner: str) -> None:
        """Counts one less."""
        self._channels[owner] -= 1
        if not self._channels[owner]:
            del self._channels[owner]

    def _is_familiar(self, source: Source) -> bool:
        return (
            source.exempt
            or self._clock.monotonic() < source.familiar_until
            or any(guest.boxes for guest in source.guests)
        )

    def _dropped_early(self) -> bool:
        taken = len(self._strangers)
        if taken < START:
            return False
        share = RATE + (1 - RATE) * (taken - START) / (FULL - START)
        return self._chance() < share

    def _take_back(self, place: Place) -> None:
        """From one who has not authenticated."""
        self._vacate(place)
        self._punish(place.source, Ending.NO_AUTH)
        place.leave()

    def _send_away(self, guests: Iterable[Place]) -> bool:
        """Ends the oldest that holds no box, of the source with most such. False: all hold one."""
        idle = [guest for guest in guests if not guest.boxes]
        if not idle:
            return False
        guest = _oldest_of_the_fullest(idle)
        self._count_out(guest)
        guest.leave()
        return True

    def _vacate(self, place: Place) -> bool:
        """Frees the place; False if it was taken back before."""
        if place not in place.source.pending:
            return False
        del place.source.pending[place]
        self._strangers.pop(place, None)
        self._familiars.pop(place, None)
        return True

    def _count_out(self, guest: Place) -> None:
        del self._guests[guest], guest.source.guests[guest]
        self._owners[guest.owner] -= 1
        if not self._owners[guest.owner]:
            del self._owners[guest.owner]

    def _punish(self, source: Source, ending: Ending) -> None:
        if not source.exempt:
            now = self._clock.monotonic()
            source.until = min(max(source.until, now) + ending.value, now + MOST_S)

    def _source(self, address: str) -> Source:
        name = source_of(address)
        source = self._sources.get(name)
        if source is None:
            source = self._sources[name] = Source(self._is_exempt(address))
        self._sources.move_to_end(name)
        while len(self._sources) > REMEMBERED:
            name, oldest = self._sources.popitem(last=False)
            if oldest.pending or oldest.guests:
                self._sources[name] = oldest  # those with connections are fewer than REMEMBERED
        return source

    def _is_exempt(self, address: str) -> bool:
        return is_exempt(address, self._trusted)


def _oldest_of_the_fullest(places: Iterable[Place]) -> Place:
    """The first of the places whose source has most of them."""
    places = list(places)
    held = Counter(place.source for place in places)
    return max(places, key=lambda place: held[place.source])
