"""Limits on the connections of the HTTP listener, and which connection is closed for a new one.

A connection is idle until a request on it presents a credential, and again after the response. In
between, the connection is busy for an owner. Idle connections of strangers are limited per source
and in total. When all slots are taken, the listener closes an idle connection, preferably one of a
stranger: the oldest connection of the source that has the most. So a client that sends nothing
cannot block other clients, and the process does not run out of files. A busy connection is never
closed; instead the number of busy connections of one owner is limited.

Loopback and trusted proxies are not strangers: all clients of a TLS proxy share its address.

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
"""Maximum number of connections; lower if the process may not open four files for each."""
STRANGERS = 1024
"""Maximum number of idle connections of all strangers."""
PER_SOURCE = 256
"""Maximum number of idle connections of one stranger: an IPv4 address, or the /64 of an IPv6
address."""
SHARE = 4
"""One owner can have at most one in SHARE of all slots."""


@dataclass(eq=False, slots=True)
class Slot:
    """The slot of one connection, until `left`. The connection is idle while `owner` is empty.

    `cut` closes the connection. The transport then calls `left` later, or never.
    """

    limits: ConnectionLimits = field(repr=False)
    source: str
    stranger: bool
    cut: Callable[[], None] = field(repr=False)
    owner: str = ""

    def begin(self, owner: str) -> tuple[int, int]:
        """Make the connection busy for `owner`, and return what `ConnectionLimits.begin` returns.

        Raises QuotaExceeded if the owner has too many.
        """
        return self.limits.begin(self, owner)

    def end(self) -> None:
        """Make the connection idle, after the response. No error if it is idle already."""
        self.limits.end(self)

    def left(self) -> None:
        """Release the slot: the connection has ended. No error if it was released already."""
        self.limits.left(self)


class IdleSlots:
    """Idle slots by source; the slots of a source are in the order in which they became idle."""

    def __init__(self) -> None:
        self._sources: dict[str, dict[Slot, None]] = {}
        self._number = 0

    def __len__(self) -> int:
        return self._number

    def __contains__(self, slot: Slot) -> bool:
        return slot in self._sources.get(slot.source, {})

    def count(self, source: str) -> int:
        """Return the number of slots of a source."""
        return len(self._sources.get(source, {}))

    def fullest(self) -> str:
        """Return the source with the most slots; among equals, the one that was added first."""
        return max(self._sources, key=self.count)

    def oldest(self, source: str) -> Slot:
        """Return the slot that has been idle longest, of a source that has one."""
        return next(iter(self._sources[source]))

    def add(self, slot: Slot) -> None:
        """Add a slot, as the newest of its source."""
        self._sources.setdefault(slot.source, {})[slot] = None
        self._number += 1

    def remove(self, slot: Slot) -> None:
        """Remove a slot. Raises KeyError if it is not here."""
        slots = self._sources[slot.source]
        del slots[slot]
        if not slots:
            del self._sources[slot.source]
        self._number -= 1


class ConnectionLimits:
    """The slots of one listener.

    `trusted`: networks of proxies, whose connections are not strangers. `most`: the number of
    slots; None: as many as the process can afford.
    """

    def __init__(self, trusted: Iterable[Network] = (), most: int | None = None) -> None:
        self._trusted = tuple(trusted)
        self._most = _affordable() if most is None else most
        self._strangers, self._others = IdleSlots(), IdleSlots()
        self._busy: Counter[str] = Counter()

    def admit(self, address: str, cut: Callable[[], None]) -> Slot | None:
        """Return a slot for a new connection, or None if all are busy: close the connection."""
        slot = Slot(self, source_of(address), not is_exempt(address, self._trusted), cut)
        strangers = self._strangers
        if slot.stranger and strangers.count(slot.source) >= PER_SOURCE:
            self._take_back(strangers, slot.source)
        elif slot.stranger and len(strangers) >= STRANGERS:
            self._take_back(strangers, strangers.fullest())
        if len(strangers) + len(self._others) + self._busy.total() >= self._most:
            idle = strangers if len(strangers) else self._others
            if not len(idle):
                return None
            self._take_back(idle, idle.fullest())
        self._idle(slot).add(slot)
        return slot

    def begin(self, slot: Slot, owner: str) -> tuple[int, int]:
        """Make a slot busy for `owner`. Raises QuotaExceeded if the owner has too many.

        Returns the number of requests that the owner may have in progress, and how many of these
        are left.
        """
        most = max(1, self._most // SHARE)
        if slot not in self._idle(slot):
            # already busy, or just reclaimed: then its connection is about to end
            return most, most - self._busy[owner]
        if self._busy[owner] >= most:
            raise QuotaExceeded(f"at most {most} requests of one owner are served at once")
        self._idle(slot).remove(slot)
        slot.owner = owner
        self._busy[owner] += 1
        return most, most - self._busy[owner]

    def end(self, slot: Slot) -> None:
        """Make a slot idle. No error if it is idle already."""
        if slot.owner:
            self._stop_counting(slot)
            self._idle(slot).add(slot)

    def left(self, slot: Slot) -> None:
        """Release a slot. No error if it was released already."""
        if slot.owner:
            self._stop_counting(slot)
        elif slot in self._idle(slot):
            self._idle(slot).remove(slot)

    def _idle(self, slot: Slot) -> IdleSlots:
        return self._strangers if slot.stranger else self._others

    def _stop_counting(self, slot: Slot) -> None:
        self._busy[slot.owner] -= 1
        if not self._busy[slot.owner]:
            del self._busy[slot.owner]
        slot.owner = ""

    def _take_back(self, idle: IdleSlots, source: str) -> None:
        slot = idle.oldest(source)
        idle.remove(slot)
        slot.cut()


def _affordable() -> int:
    """Return the number of connections for which the process can open four files each."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else max(1, min(MOST, soft // 4))
