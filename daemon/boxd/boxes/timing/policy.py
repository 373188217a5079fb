"""Times of the service for unused boxes: defaults and bounds. Pure functions.

The times of a tier, the ceiling and the default of `^ttl`, are in tiers.toml.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from boxd.names.duration import MAX_DURATION, format_duration

IDLE_TIMEOUT = timedelta(minutes=2)
"""The default of `--idle-timeout`."""
IDLE_REAP = timedelta(hours=3)
"""The default of `--idle-reap`."""
SHORTEST = timedelta(seconds=1)
"""The timers look once a second. Zero would suspend a box between two commands."""
LONGEST = MAX_DURATION
"""Ten years, the longest duration that can be written (`names.duration`)."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The operator's settings for all boxes. Raises ValueError, which names the invalid flag.

    Each is a duration of whole seconds from `SHORTEST` to `LONGEST`, counted as elapsed time, so
    clock steps do not affect it. An owner with a different tier has its own Policy.
    """

    idle_timeout: timedelta = IDLE_TIMEOUT
    """Minimum time from the last use of a running box until its suspension."""
    idle_reap: timedelta = IDLE_REAP
    """Time from the suspension of a box until its removal; for a box that cannot be suspended, from
    its last use.
    """
    grace: timedelta | None = None
    """`--grace`: how long a box without `+duration` stays unchanged after the last detach. None: no
    grace period. That counts as zero, but a box that cannot be suspended is then not removed before
    `idle_reap` has passed."""
    grace_max: timedelta = LONGEST
    """The longest grace period of a spec or a profile; longer ones are clamped. By default there is
    no ceiling below the longest duration that can be written.
    """

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
            raise ValueError(f"--grace is longer than the maximum of a box, {most}")


def _in_bounds(value: timedelta) -> bool:
    return SHORTEST <= value <= LONGEST and not value % timedelta(seconds=1)


SHIPPED = Policy()
"""The policy without any flag."""
