"""Limits on connections: which ones the listener admits, and which ones it ends for newer ones.

A connection occupies a slot until it authenticates. There are two pools of slots. Known sources use
their own pool: loopback, networks that the operator trusts, and addresses that used a box recently.
All others are unknown sources, so a flood of them fills only the pool of unknown sources. When a
pool is full, the newcomer gets the oldest slot of the source that occupies the most. A silent
client therefore cannot keep others out.

A source that misbehaves collects seconds of penalty, as in OpenSSH's server. The listener rejects
an unknown source with too many outstanding seconds.

A key costs nothing, so authenticated connections are limited, too: for each owner, for each source
and in total. Connections that hold no box end first.

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

PENDING_UNKNOWN = 100
"""Slots for connections of unknown sources that have not authenticated."""
PENDING_PER_SOURCE = 32
"""Slots of one unknown source."""
PENDING_KNOWN = 500
"""Slots for connections of known sources that have not authenticated."""
EARLY_DROP_START, EARLY_DROP_RATE = 10, 0.30
"""From EARLY_DROP_START occupied slots on, the listener drops further connections of a source with
a slot at random. The share starts at EARLY_DROP_RATE and grows to 1 at PENDING_UNKNOWN."""
PENALTY_ENFORCED_S = 15.0
"""The listener rejects an unknown source with at least this many outstanding seconds of penalty."""
MAX_PENALTY_S = 600.0
KNOWN_FOR_S = 3600.0
"""Seconds that a source stays known after it held a box."""
MAX_SOURCES = 10_000
"""Maximum number of sources in memory. The oldest ones without connections are evicted first."""

MAX_CONNECTIONS = 2000
"""Maximum number of authenticated connections in total."""
CONNECTIONS_PER_SOURCE = 200
"""Authenticated connections of a source that is neither loopback nor trusted by the operator."""
CONNECTIONS_PER_OWNER = 256
CHANNELS_PER_OWNER = 200


class Penalty(Enum):
    """Why a connection ended before it authenticated; the value is its penalty in seconds."""

    FAILED_AUTH = 5.0
    NO_AUTH = 1.0
    GRACE_EXCEEDED = 10.0
    MALFORMED = 90.0


@dataclass(eq=False, slots=True)
class Slot:
    """One connection, from `ConnectionLimits.admit` to `ConnectionLimits.release`."""

    source: Source
    disconnect: Callable[[], None]
    """Ends the connection. `release` may follow later, or never."""
    owner: str = ""
    """The owner of the proved key; empty before authentication."""
    boxes: int = 0
    """The number of channels that hold a box."""


@dataclass(eq=False, slots=True)
class Source:
    """The connections of one address. Times are monotonic seconds; slots are in arrival order."""

    exempt: bool
    """Loopback, or trusted by the operator: no penalties, and no limit of its own."""
    pending: dict[Slot, None] = field(default_factory=dict)
    authenticated: dict[Slot, None] = field(default_factory=dict)
    penalty_until: float = 0.0
    known_until: float = 0.0


class ConnectionLimits:
    """The counts of one listener. `chance` returns a number in [0, 1)."""

    def __init__(
        self,
        clock: Clock,
        chance: Callable[[], float] | None = None,
        trusted: Iterable[Network] = (),
    ) -> None:
        self._clock = clock
        self._chance = chance if chance is not None else random.SystemRandom().random
        self._trusted = tuple(trusted)
        self._pending_unknown: dict[Slot, None] = {}
        self._pending_known: dict[Slot, None] = {}
        self._authenticated: dict[Slot, None] = {}
        self._sources: OrderedDict[str, Source] = OrderedDict()
        self._connections: Counter[str] = Counter()
        self._channels: Counter[str] = Counter()

    def admit(self, address: str, disconnect: Callable[[], None]) -> Slot | None:
        """Return a slot for a new connection, or None to reject it.

        `disconnect` is called when a newer connection takes the slot.
        """
        source = self._source(address)
        pool, size = self._pending_known, PENDING_KNOWN
        if not self._is_known(source):
            pool, size = self._pending_unknown, PENDING_UNKNOWN
            if source.penalty_until - self._clock.monotonic() >= PENALTY_ENFORCED_S:
                return None
            if source.pending and self._dropped_early():
                return None
            if len(source.pending) >= PENDING_PER_SOURCE:
                self._evict_pending(next(iter(source.pending)))
        if len(pool) >= size:
            self._evict_pending(_oldest_of_largest_source(pool))
        slot = Slot(source, disconnect)
        pool[slot] = source.pending[slot] = None
        return slot

    def authenticate(self, slot: Slot, owner: str) -> str:
        """Count an authenticated connection; return why it must end, or an empty text."""
        if not self._remove_pending(slot):
            return "this connection was closed to make room for a newer one; try again"
        source = slot.source
        if self._connections[owner] >= CONNECTIONS_PER_OWNER:
            return f"at most {CONNECTIONS_PER_OWNER} connections of one key are open at once"
        if (
            not source.exempt
            and len(source.authenticated) >= CONNECTIONS_PER_SOURCE
            and not self._evict_idle(source.authenticated)
        ):
            return f"at most {CONNECTIONS_PER_SOURCE} connections from one address are open at once"
        if len(self._authenticated) >= MAX_CONNECTIONS and not self._evict_idle(
            self._authenticated
        ):
            return f"at most {MAX_CONNECTIONS} connections are open at once"
        slot.owner = owner
        self._connections[owner] += 1
        self._authenticated[slot] = source.authenticated[slot] = None
        return ""

    def release(self, slot: Slot, penalty: Penalty) -> None:
        """Free the slot of a closed connection; `penalty` applies if it had not authenticated."""
        if slot in self._authenticated:
            self._remove_authenticated(slot)
        elif self._remove_pending(slot):
            self._penalize(slot.source, penalty)

    @contextlib.contextmanager
    def holding_box(self, slot: Slot) -> Iterator[None]:
        """Count a channel that holds a box while the context lasts."""
        slot.boxes += 1
        try:
            yield
        finally:
            slot.boxes -= 1
            slot.source.known_until = self._clock.monotonic() + KNOWN_FOR_S

    def open_channel(self, owner: str) -> bool:
        """Count a new channel of the owner; return False if the owner has too many."""
        if self._channels[owner] >= CHANNELS_PER_OWNER:
            return False
        self._channels[owner] += 1
        return True

    def close_channel(self, owner: str) -> None:
        """Count a closed channel of the owner."""
        self._channels[owner] -= 1
        if not self._channels[owner]:
            del self._channels[owner]

    def _is_known(self, source: Source) -> bool:
        return (
            source.exempt
            or self._clock.monotonic() < source.known_until
            or any(slot.boxes for slot in source.authenticated)
        )

    def _dropped_early(self) -> bool:
        occupied = len(self._pending_unknown)
        if occupied < EARLY_DROP_START:
            return False
        fill = (occupied - EARLY_DROP_START) / (PENDING_UNKNOWN - EARLY_DROP_START)
        return self._chance() < EARLY_DROP_RATE + (1 - EARLY_DROP_RATE) * fill

    def _evict_pending(self, slot: Slot) -> None:
        self._remove_pending(slot)
        self._penalize(slot.source, Penalty.NO_AUTH)
        slot.disconnect()

    def _evict_idle(self, slots: Iterable[Slot]) -> bool:
        """End one connection that holds no box; return False if there is none.

        The method ends the oldest such connection of the source that has the most.
        """
        idle = [slot for slot in slots if not slot.boxes]
        if not idle:
            return False
        slot = _oldest_of_largest_source(idle)
        self._remove_authenticated(slot)
        slot.disconnect()
        return True

    def _remove_pending(self, slot: Slot) -> bool:
        """Remove the slot; return False if it was removed before."""
        if slot not in slot.source.pending:
            return False
        del slot.source.pending[slot]
        self._pending_unknown.pop(slot, None)
        self._pending_known.pop(slot, None)
        return True

    def _remove_authenticated(self, slot: Slot) -> None:
        del self._authenticated[slot], slot.source.authenticated[slot]
        self._connections[slot.owner] -= 1
        if not self._connections[slot.owner]:
            del self._connections[slot.owner]

    def _penalize(self, source: Source, penalty: Penalty) -> None:
        if not source.exempt:
            now = self._clock.monotonic()
            until = max(source.penalty_until, now) + penalty.value
            source.penalty_until = min(until, now + MAX_PENALTY_S)

    def _source(self, address: str) -> Source:
        name = source_of(address)
        source = self._sources.get(name)
        if source is None:
            source = self._sources[name] = Source(self._is_exempt(address))
        self._sources.move_to_end(name)
        while len(self._sources) > MAX_SOURCES:
            name, oldest = self._sources.popitem(last=False)
            if oldest.pending or oldest.authenticated:
                self._sources[name] = oldest  # fewer than MAX_SOURCES sources have connections
        return source

    def _is_exempt(self, address: str) -> bool:
        return is_exempt(address, self._trusted)


def _oldest_of_largest_source(slots: Iterable[Slot]) -> Slot:
    """Return the first slot of the source that has the most of these slots."""
    slots = list(slots)
    counts = Counter(slot.source for slot in slots)
    return max(slots, key=lambda slot: counts[slot.source])
