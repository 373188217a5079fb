"""Limits on wrong codes, for each SSH key and for each source address.

All counts are in memory. No method awaits, so each is atomic on the event loop.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from boxd.errors import QuotaExceeded

if TYPE_CHECKING:
    from boxd.boxes.limits.source_addresses import SourceAddresses
    from boxd.clock import Clock
    from boxd.principal import Principal

WINDOW_S = 600.0
"""Seconds for which a wrong code counts."""
TRIES_PER_KEY = 5
TRIES_PER_SOURCE = 20
"""Wrong codes from one address; loopback and the operator's trusted networks do not count."""
REMEMBERED = 10_000
"""Keys and addresses with wrong codes; the daemon forgets the least recent first."""


class Tries:
    """Counts wrong codes."""

    def __init__(self, clock: Clock, sources: SourceAddresses) -> None:
        self._clock = clock
        self._sources = sources
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, p: Principal) -> None:
        """Raise QuotaExceeded if the key or its address has sent too many wrong codes."""
        since = self._clock.monotonic() - WINDOW_S
        for name, limit in self._limits(p).items():
            moments = self._failures.get(name, ())
            if sum(moment > since for moment in moments) >= limit:
                raise QuotaExceeded(
                    f"too many wrong codes; try again in {round(WINDOW_S / 60)} minutes"
                )

    def count(self, p: Principal) -> None:
        """Count a wrong code."""
        for name, limit in self._limits(p).items():
            moments = self._failures.setdefault(name, deque(maxlen=limit))
            moments.append(self._clock.monotonic())
            self._failures.move_to_end(name)
        while len(self._failures) > REMEMBERED:
            self._failures.popitem(last=False)

    def _limits(self, p: Principal) -> dict[str, int]:
        """Return the limits that apply to a caller, by the name of what they count."""
        limits = {f"key {p.fingerprint}": TRIES_PER_KEY}
        source = self._sources.source(p.proved.address) if p.proved is not None else None
        return limits if source is None else limits | {f"source {source}": TRIES_PER_SOURCE}
