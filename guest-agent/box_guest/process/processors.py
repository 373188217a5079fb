"""The number of processors that this box may use, by the CPU quota of its own cgroup."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
_UNIFIED = "cpu.max"
_QUOTA, _PERIOD = "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"


def limit(cgroups: Path = CGROUPS) -> int | None:
    """Return the quota in whole processors, rounded up; None without a quota."""
    with suppress(OSError, ValueError):
        quota, period = (cgroups / _UNIFIED).read_text().split()
        return _whole(quota, period)
    with suppress(OSError, ValueError):
        return _whole((cgroups / _QUOTA).read_text(), (cgroups / _PERIOD).read_text())
    return None


def _whole(quota: str, period: str) -> int | None:
    """Divide and round up. Raises ValueError for `max`, which means no quota in cgroup v2."""
    return -(-int(quota) // int(period)) if int(quota) > 0 else None


def environment(cgroups: Path = CGROUPS) -> dict[str, str]:
    """Return variables that limit programs to as many threads as the box has processors.

    `nproc` and OpenMP count the processors that the scheduler may use, which are all of the host's,
    unless OMP_NUM_THREADS is set. A cpuset would give the right count, but it would bind a box to
    particular processors. Other boxes may use those while others are idle.
    """
    processors = limit(cgroups)
    if processors is None or processors >= len(os.sched_getaffinity(0)):
        return {}
    return {"OMP_NUM_THREADS": str(processors)}
