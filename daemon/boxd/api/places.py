"""Which connections the HTTP listener keeps when there are more than it takes.

A connection is idle until a request on it has shown a credential, and again when that request has
been answered; in between it is busy, for an owner. Idle ones are bounded for each source and for
all strangers, and where all places are taken they are what makes room, strangers' first: the oldest
of the source that holds most. So who waits without a word keeps nobody out, and files do not run
out. A busy connection is never taken; how many of them one owner has is bounded instead.

Loopback and trusted proxies are no strangers: the clients of a TLS proxy all come from its address.

No method awaits, so each is atomic on the event loop.
"""

from __future__ import annotations

import resource
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from boxd.errors import QuotaExceeded
from boxd.names.source import is_exempt, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from boxd.names.source import Network

MOST = 8192
"""Connections in all; fewer where the process may not open four files for each."""
STRANGERS = 1024
"""Idle connections of all sources that are strangers'."""
PER_SOURCE = 256
"""Idle connections of one source of strangers: an IPv4 address, or the /64 of an IPv6 address."""
SHARE = 4
"""One owner has at most this part of all places."""


@dataclass(eq=False, slots=True)
class Place:
    """One connection, until it has `left`. It is idle as long as it has no `owner`.

    `cut` ends the connection; what that calls comes back as `left` later, or never.
    """

    places: Places = field(repr=False)
    source: str
    stranger: bool
    cut: Callable[[], None] = field(repr=False)
    owner: str = ""

    def begin(self, owner: str) -> None:
        """A request of an owner is served on it. QuotaExceeded when the owner has too many."""
        self.places.begin(self, owner)

    def end(self) -> None:
        """The request has been answered. No error if none was served."""
        self.places.end(self)

    def left(self) -> None:
        """The connection is gone. No error if its place was taken back."""
        self.places.left(self)


class Stock:
    """Idle places by source; each source's are in order of their becoming idle."""

    def __init__(self) -> None:
        self._sources: dict[str, dict[Place, None]] = {}
        self._number = 0

    def __len__(self) -> int:
        return self._number

    def __contains__(self, place: Place) -> bool:
        return place in self._sources.get(place.source, {})

    def held(self, source: str) -> int:
        """How many a source has."""
        return len(self._sources.get(source, {}))

    def fullest(self) -> str:
        """The source that has most; of several the one that came first."""
        return max(self._sources, key=self.held)

    def oldest(self, source: str) -> Place:
        """The one that has been idle for longest, of a source that has one."""
        return next(iter(self._sources[source]))

    def add(self, place: Place) -> None:
        """One more."""
        self._sources.setdefault(place.source, {})[place] = None
        self._number += 1

    def remove(self, place: Place) -> None:
        """One that is there."""
        mine = self._sources[place.source]
        del mine[place]
        if not mine:
            del self._sources[place.source]
        self._number -= 1


class Places:
    """The places of one listener. `trusted`: proxies, whose connections are no strangers'."""

    def __init__(self, trusted: Iterable[Network] = (), most: int | None = None) -> None:
        self._trusted = tuple(trusted)
        self._most = _affordable() if most is None else most
        self._strangers, self._others = Stock(), Stock()
        self._busy: Counter[str] = Counter()

    def admit(self, address: str, cut: Callable[[], None]) -> Place | None:
        """A place for a new connection; None when all are busy: it has to go."""
        place = Place(self, source_of(address), not is_exempt(address, self._trusted), cut)
        strangers = self._strangers
        if place.stranger and strangers.held(place.source) >= PER_SOURCE:
            self._take_back(strangers, place.source)
        elif place.stranger and len(strangers) >= STRANGERS:
            self._take_back(strangers, strangers.fullest())
        if len(strangers) + len(self._others) + self._busy.total() >= self._most:
            stock = strangers if len(strangers) else self._others
            if not len(stock):
                return None
            self._take_back(stock, stock.fullest())
        self._stock(place).add(place)
        return place

    def begin(self, place: Place, owner: str) -> None:
        """See `Place`."""
        if place not in self._stock(place):
            return  # begun already, or taken back a moment ago: then its end is on the way
        most = max(1, self._most // SHARE)
        if self._busy[owner] >= most:
            raise QuotaExceeded(f"at most {most} requests of one owner are served at once")
        self._stock(place).remove(place)
        place.owner = owner
        self._busy[owner] += 1

    def end(self, place: Place) -> None:
        """See `Place`."""
        if place.owner:
            self._count_out(place)
            self._stock(place).add(place)

    def left(self, place: Place) -> None:
        """See `Place`."""
        if place.owner:
            self._count_out(place)
        elif place in self._stock(place):
            self._stock(place).remove(place)

    def _stock(self, place: Place) -> Stock:
        return self._strangers if place.stranger else self._others

    def _count_out(self, place: Place) -> None:
        self._busy[place.owner] -= 1
        if not self._busy[place.owner]:
            del self._busy[place.owner]
        place.owner = ""

    def _take_back(self, stock: Stock, source: str) -> None:
        place = stock.oldest(source)
        stock.remove(place)
        place.cut()


def _affordable() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else max(1, min(MOST, soft // 4))
