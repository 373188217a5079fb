"""Moments on two clocks, so that the type of a moment tells by which clock its rule counts.

A deadline is a moment on the wall clock, an aware `datetime`: when that clock is set, it comes
sooner or later. What counts elapsed time (grace, idle-timeout, idle-reap, pins) is a `BootMoment`,
a duration on CLOCK_BOOTTIME, which nobody sets and which goes on while the machine sleeps. The two
meet only in a `Now`, which read both clocks at once. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from boxd.clock import Clock


@dataclass(frozen=True, slots=True, order=True)
class BootMoment:
    """A moment of elapsed time. It means nothing after the machine was started again."""

    since_boot: timedelta

    def __add__(self, span: timedelta) -> BootMoment:
        """The moment that comes `span` later, whatever happens to the wall clock."""
        return BootMoment(self.since_boot + span)

    def __sub__(self, earlier: BootMoment) -> timedelta:
        """How much time passed from `earlier` to this one."""
        return self.since_boot - earlier.since_boot


Moment: TypeAlias = datetime | BootMoment
"""When a rule acts: by the wall clock, or after so much elapsed time."""


@dataclass(frozen=True, slots=True)
class Now:
    """The present moment on both clocks."""

    wall: datetime
    boot: BootMoment

    @classmethod
    def read(cls, clock: Clock) -> Now:
        """Both hands of the service's clock."""
        return cls(clock.now(), BootMoment(timedelta(seconds=clock.monotonic())))

    def left(self, moment: Moment) -> timedelta:
        """How long until `moment` if nobody sets the clock; zero or less when it has come."""
        if isinstance(moment, BootMoment):
            return moment - self.boot
        return moment - self.wall

    def shown(self, moment: Moment) -> datetime:
        """What the wall clock will show at `moment` if nobody sets it."""
        if isinstance(moment, BootMoment):
            return self.wall + self.left(moment)
        return moment
