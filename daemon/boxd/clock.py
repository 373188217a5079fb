"""Wall-clock time and monotonic time behind one protocol, so that tests can replace the clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """The source of time for the service."""

    def now(self) -> datetime:
        """Return the wall-clock time in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never decrease and include the time that the machine sleeps."""
        ...


class HostClock(Clock, Protocol):
    """A clock that also identifies the current boot of the machine."""

    def boot_id(self) -> str:
        """Return an id of the machine's current boot. Each boot has another id."""
        ...


class SystemClock:
    """The clocks of the machine. Monotonic time is CLOCK_BOOTTIME."""

    def now(self) -> datetime:
        """Return the wall-clock time in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds that never decrease and include the time that the machine sleeps."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def boot_id(self) -> str:
        """Return an id of the machine's current boot. Each boot has another id."""
        return BOOT_ID.read_text(encoding="ascii").strip()
