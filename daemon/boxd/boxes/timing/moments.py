"""Points in time on two clocks. The type of a point identifies the clock of its rule.

A deadline is a wall-clock time, an aware `datetime`: setting the clock moves it closer or further
away. Grace period, idle timeout, idle reaping and pins count elapsed time, a `BootMoment`: a
duration on CLOCK_BOOTTIME, which cannot be set and also runs while the machine sleeps. Only a
`Now`, which reads both clocks at once, relates the two. Pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from boxd.clock import Clock


@dataclass(frozen=True, slots=True, order=True)
class BootMoment:
    """A point of elapsed time. It is meaningless after a restart of the machine."""

    since_boot: timedelta

    def __add__(self, span: timedelta) -> BootMoment:
        """Return the point `span` later, independent of the wall clock."""
        return BootMoment(self.since_boot + span)

    def __sub__(self, earlier: BootMoment) -> timedelta:
        """Return the time from `earlier` to this point."""
        return self.since_boot - earlier.since_boot


Moment: TypeAlias = datetime | BootMoment
"""The time of an action: a wall-clock time, or an elapsed time."""


@dataclass(frozen=True, slots=True)
class Now:
    """The current time on both clocks."""

    wall: datetime
    boot: BootMoment

    @classmethod
    def read(cls, clock: Clock) -> Now:
        """Read both times of the service's clock."""
        return cls(clock.now(), BootMoment(timedelta(seconds=clock.monotonic())))

    def left(self, moment: Moment) -> timedelta:
        """Return the time until `moment` if the clock is not set; zero or less if it has passed."""
        if isinstance(moment, BootMoment):
            return moment - self.boot
        return moment - self.wall

    def shown(self, moment: Moment) -> datetime:
        """Return the wall-clock time at `moment` if the clock is not set."""
        if isinstance(moment, BootMoment):
            return self.wall + self.left(moment)
        return moment
