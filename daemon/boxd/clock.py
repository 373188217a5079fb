"""Wall time and monotonic time behind one Protocol, so that tests can turn the hands."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where the service reads time."""

    def now(self) -> datetime:
        """Wall time, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow, also while the machine sleeps."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """Wall time, UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds that only grow, also while the machine sleeps."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)
