"""Detects that the machine has slept.

During sleep, timeouts of this kernel stop, but other sessions' waits for this one continue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

TICK = 0.25
"""Seconds between two checks."""
LEAST = 0.05
"""Minimum number of seconds of sleep that counts; shorter sleeps add up. Other sessions wait one
second longer than a cache may be served."""


class Sleep:
    """Compares a clock that runs while the machine sleeps with one that stops."""

    def __init__(self, waking: Callable[[], float], always: Callable[[], float]) -> None:
        """`waking` returns CLOCK_MONOTONIC and `always` CLOCK_BOOTTIME, in seconds."""
        self._waking = waking
        self._always = always
        self._known = self._ahead()[1]

    def has_been(self) -> bool:
        """Return True once after each sleep of the machine."""
        least, most = self._ahead()
        if least > self._known + LEAST:
            self._known = most
            return True
        self._known = min(self._known, most)
        return False

    def _ahead(self) -> tuple[float, float]:
        """Return bounds of how far `always` is ahead.

        These are bounds because the process may stop between two reads of the clocks.
        """
        before = self._waking()
        always = self._always()
        return always - self._waking(), always - before
