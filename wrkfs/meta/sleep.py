"""Notices that the machine has slept: time-outs of its kernel have stood still meanwhile, and those
who wait for this session have not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

TICK = 0.25
"""Seconds between two looks."""
LEAST = 0.05
"""Seconds of sleep that count, together if they were several; others wait for a second longer than
what is kept may be served."""


class Sleep:
    """Compares a clock that goes on while the machine sleeps with one that does not."""

    def __init__(self, waking: Callable[[], float], always: Callable[[], float]) -> None:
        """Both in seconds: CLOCK_MONOTONIC and CLOCK_BOOTTIME."""
        self._waking = waking
        self._always = always
        self._known = self._ahead()[1]

    def has_been(self) -> bool:
        """Whether the machine has slept since this was last true, or since the beginning."""
        least, most = self._ahead()
        if least > self._known + LEAST:
            self._known = most
            return True
        self._known = min(self._known, most)
        return False

    def _ahead(self) -> tuple[float, float]:
        """Bounds of how far the one is ahead: the process may stop between two looks at clocks."""
        before = self._waking()
        always = self._always()
        return always - self._waking(), always - before
