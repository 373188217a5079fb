"""Times of the service that boxes without activity live by: defaults and bounds. Pure.

The tier's own times of a box, the ceiling and the default of `^ttl`, stand in tiers.toml.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from boxd.names.duration import MAX_DURATION, format_duration

IDLE_TIMEOUT = timedelta(minutes=2)
"""`--idle-timeout`, two minutes: product spec, sections 3 and 8."""
IDLE_REAP = timedelta(hours=3)
"""`--idle-reap`, three hours: product spec, sections 3 and 8."""
SHORTEST = timedelta(seconds=1)
"""The timers look once a second; zero would suspend a box between two commands."""
LONGEST = MAX_DURATION
"""Ten years, the longest duration that can be written (`names.duration`)."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator decides for all boxes. ValueError names a flag out of its bounds.

    Each is a time of whole seconds from `SHORTEST` to `LONGEST`, counted as elapsed time: a step of
    the wall clock changes none of them. An owner whose tier differs gets a Policy of its own.
    """

    idle_timeout: timedelta = IDLE_TIMEOUT
    """From the last use of a running box until it is suspended, at the earliest."""
    idle_reap: timedelta = IDLE_REAP
    """From the suspension of a box until it is removed; of one that cannot be suspended, from its
    last use."""
    grace: timedelta | None = None
    """`--grace`: how long a box without `+duration` stays as it is after the last detach (product
    spec 2.3). None: nothing is stated. That counts as no time at all, and a box that cannot be
    suspended is then not removed before `idle_reap` has passed."""
    grace_max: timedelta = LONGEST
    """The most that a spec or a profile may state; longer ones are clamped. The product spec names
    no ceiling, so that the default is what can be written."""

    def __post_init__(self) -> None:
        for flag, value in (
            ("--idle-timeout", self.idle_timeout),
            ("--idle-reap", self.idle_reap),
            ("--grace", self.grace),
            ("the longest grace", self.grace_max),
        ):
            if value is not None and not _in_bounds(value):
                bounds = f"from {format_duration(SHORTEST)} to {format_duration(LONGEST)}"
                raise ValueError(f"{flag} must be a time of whole seconds {bounds}, not {value}")
        if self.grace is not None and self.grace > self.grace_max:
            most = format_duration(self.grace_max)
            raise ValueError(f"--grace is longer than the most that a box may have, {most}")


def _in_bounds(value: timedelta) -> bool:
    return SHORTEST <= value <= LONGEST and not value % timedelta(seconds=1)


SHIPPED = Policy()
"""What applies when the operator says nothing."""
