"""Wall time and monotonic time behind one Protocol, so that tests can turn the hands."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """Where the service reads time."""

    def now(self) -> datetime:
        """Wall time, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow, also while the machine sleeps."""
        ...


class HostClock(Clock, Protocol):
    """A clock that knows the machine's starts."""

    def boot_id(self) -> str:
        """Names the machine's present start: the next one has another."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """Wall time, UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds that only grow, also while the machine sleeps."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def boot_id(self) -> str:
        """Names the machine's present start: the next one has another."""
        return BOOT_ID.read_text(encoding="ascii").strip()
