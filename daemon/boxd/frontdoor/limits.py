"""How many strangers may knock, how often, and what an owner may have open at once.

Connections that have not authenticated are counted over all, with a random early drop, and per
source. A source that misbehaves collects seconds of penalty, as OpenSSH's server does it, and is
not let in while enough of them are outstanding. Loopback and sources that authenticated before
meet neither the early drop nor penalties of others' making, so no owner is turned away by them.

No method awaits, so each is atomic on the event loop.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from boxd.clock import Clock

START, RATE, FULL = 10, 0.30, 100
"""Above START unauthenticated connections a share of RATE, growing to all at FULL, is dropped."""
PER_SOURCE = 32
"""Unauthenticated connections of one source."""
ENFORCED_FROM_S = 15.0
"""Outstanding seconds of penalty from which a source is not let in."""
MOST_S = 600.0
TRUSTED_FOR_S = 3600.0
"""How long a source that authenticated is taken for an owner's."""
REMEMBERED = 10_000
"""Sources kept in memory; the oldest are forgotten first."""
CHANNELS_PER_OWNER = 200


class Ending(Enum):
    """How a connection ended that did not authenticate; the value is its penalty in seconds."""

    FAILED_AUTH = 5.0
    NO_AUTH = 1.0
    GRACE_EXCEEDED = 10.0
    MALFORMED = 90.0


@dataclass(slots=True)
class _Source:
    """`pending`: unauthenticated now. `until`: end of the penalty. Times are monotonic seconds."""

    pending: int = 0
    until: float = 0.0
    trusted_until: float = 0.0


class Limits:
    """Counts of one listener. `chance` returns a number in [0, 1)."""

    def __init__(self, clock: Clock, chance: Callable[[], float] | None = None) -> None:
        self._clock = clock
        self._chance = chance if chance is not None else random.SystemRandom().random
        self._pending = 0
        self._sources: OrderedDict[str, _Source] = OrderedDict()
        self._channels: Counter[str] = Counter()

    def admit(self, address: str) -> bool:
        """Whether a new connection may go on; counts it as unauthenticated if so."""
        if self._pending >= FULL:
            return False
        source = self._source(address)
        now = self._clock.monotonic()
        if not _is_loopback(address):
            if source.pending >= PER_SOURCE or source.until - now >= ENFORCED_FROM_S:
                return False
            if now >= source.trusted_until and self._dropped_early():
                return False
        self._pending += 1
        source.pending += 1
        return True

    def authenticated(self, address: str) -> None:
        """An admitted connection has proved its key."""
        source = self._source(address)
        self._settle(source)
        source.trusted_until = self._clock.monotonic() + TRUSTED_FOR_S

    def ended(self, address: str, ending: Ending) -> None:
        """An admitted connection is gone without having authenticated."""
        source = self._source(address)
        self._settle(source)
        if not _is_loopback(address):
            now = self._clock.monotonic()
            source.until = min(max(source.until, now) + ending.value, now + MOST_S)

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

    def _dropped_early(self) -> bool:
        if self._pending < START:
            return False
        share = RATE + (1 - RATE) * (self._pending - START) / (FULL - START)
        return self._chance() < share

    def _settle(self, source: _Source) -> None:
        self._pending -= 1
        source.pending -= 1

    def _source(self, address: str) -> _Source:
        key = source_of(address)
        source = self._sources.setdefault(key, _Source())
        self._sources.move_to_end(key)
        while len(self._sources) > REMEMBERED:
            oldest = next(iter(self._sources))
            if self._sources[oldest].pending:
                break  # it is still counted; connections are few, so this cannot pile up
            del self._sources[oldest]
        return source


def source_of(address: str) -> str:
    """What counts as one source: an IPv4 address, or the /64 of an IPv6 address."""
    ip = _ip(address)
    if ip is None:
        return address
    return str(ip if ip.version == 4 else ip_network((ip, 64), strict=False))


def _is_loopback(address: str) -> bool:
    ip = _ip(address)
    return ip is not None and ip.is_loopback


def _ip(address: str) -> IPv4Address | IPv6Address | None:
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return None  # a Unix socket has none
    return ip.ipv4_mapped or ip if isinstance(ip, IPv6Address) else ip
