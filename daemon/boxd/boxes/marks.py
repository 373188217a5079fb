"""Marks in the rows of boxes: moments of elapsed time that outlive the daemon.

What counts elapsed time must mind neither steps of the wall clock nor the time in which no daemon
lived: else a clock that is set would suspend boxes in use, and a service that was stopped overnight
would find all of them overdue in the morning. So a mark (`since`, `idle_since`, `pinned_until` of a
box) is a moment on a clock of the service's own. It has the form of a `datetime`, began at the wall
time of the first start, goes on by CLOCK_BOOTTIME while a daemon lives, and stands still while none
does. Where it stands is a setting that is written every now and then and at an orderly end; after
a crash the clock goes on from the last setting or the latest mark, whichever is later.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from boxd.boxes.moments import BootMoment, Now

if TYPE_CHECKING:
    from collections.abc import Iterable

    from boxd.clock import Clock
    from boxd.model.box import Box
    from boxd.store.interface import ControlStore

ALIVE = "alive"
"""The setting that tells where the clock of the marks stands."""


class Marks:
    """See the module. Before `start` the clock shows wall time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mark, self._boot = clock.now(), Now.read(clock).boot

    async def start(self, store: ControlStore, boxes: Iterable[Box]) -> None:
        """Goes on where the last daemon ended. Raises Unavailable."""
        told = await store.setting(ALIVE)
        known = [mark for box in boxes for mark in (box.since, box.idle_since) if mark is not None]
        known.append(self._clock.now() if told is None else datetime.fromisoformat(told))
        self._mark, self._boot = max(known), Now.read(self._clock).boot

    async def keep(self, store: ControlStore) -> None:
        """Writes down where the clock stands. Raises Unavailable."""
        await store.put_setting(ALIVE, self.now().isoformat())

    def now(self) -> datetime:
        """The mark of this moment."""
        return self.of(Now.read(self._clock).boot)

    def of(self, moment: BootMoment) -> datetime:
        """The mark of a moment."""
        return self._mark + (moment - self._boot)

    def moment(self, mark: datetime) -> BootMoment:
        """When that was, or will be."""
        return self._boot + (mark - self._mark)
