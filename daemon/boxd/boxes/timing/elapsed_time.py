"""The elapsed-time clock, whose values outlive the daemon in the rows of boxes.

Rules on elapsed time must ignore clock steps and downtime. Otherwise setting the clock would
suspend boxes in use, and after a night of downtime all boxes would be overdue. So `since`,
`idle_since` and `pinned_until` of a box are values of a clock of the service, called marks. A mark
has the type `datetime`. The clock began at the wall-clock time of the first start. It follows
CLOCK_BOOTTIME while a daemon runs, and stops otherwise. A setting stores its value regularly and at
a normal end. After a crash the clock continues from that setting or from the latest mark, whichever
is later.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from boxd.boxes.timing.moments import BootMoment, Now

if TYPE_CHECKING:
    from collections.abc import Iterable

    from boxd.clock import Clock
    from boxd.model.box import Box
    from boxd.store.interface import ControlStore

ALIVE = "alive"
"""Name of the setting that stores the value of the clock."""


class ElapsedTimeStore:
    """Converts between marks and BootMoments. Before `start` the clock shows wall-clock time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mark, self._boot = clock.now(), Now.read(clock).boot

    async def start(self, store: ControlStore, boxes: Iterable[Box]) -> None:
        """Continue where the last daemon ended. Raises Unavailable."""
        stored = await store.setting(ALIVE)
        marks = [mark for box in boxes for mark in (box.since, box.idle_since) if mark is not None]
        marks.append(self._clock.now() if stored is None else datetime.fromisoformat(stored))
        self._mark, self._boot = max(marks), Now.read(self._clock).boot

    async def keep(self, store: ControlStore) -> None:
        """Store the value of the clock. Raises Unavailable."""
        await store.put_setting(ALIVE, self.now().isoformat())

    def now(self) -> datetime:
        """Return the current mark."""
        return self.of(Now.read(self._clock).boot)

    def of(self, moment: BootMoment) -> datetime:
        """Return the mark of a point in time."""
        return self._mark + (moment - self._boot)

    def moment(self, mark: datetime) -> BootMoment:
        """Return the point in time of a mark."""
        return self._boot + (mark - self._mark)
