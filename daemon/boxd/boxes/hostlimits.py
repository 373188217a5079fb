"""What all boxes of this host may take together, whoever owns them.

Caps of boxes are no reservations: most boxes use a part of theirs. So the sum of the memory caps of
running boxes may be `OVERCOMMIT` times what the host has for boxes; that the host itself is never
short of memory is what the cgroup above all boxes sees to. Where there is none, the sum is not more
than the host has for boxes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.backends.hostfiles import MEMINFO, memory_for_boxes
from boxd.boxes.quota import AWAKE
from boxd.errors import BadRequest, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from boxd.model.box import Box

RUNNING = 500
"""Boxes of all owners that run at once, unless the operator says otherwise."""
OVERCOMMIT = 4
FREE_MB = 2048
FREE_SHARE = 20
"""MiB of the state directory's disk that stay free: so many, but at most one part in so many."""
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Ceilings over all owners. `free_mb` is the floor of free space below `state_dir`.

    `mem_mb` bounds the sum of the memory caps of running boxes.
    """

    state_dir: Path
    running: int
    mem_mb: int
    free_mb: int

    def check(self, boxes: Sequence[Box], *, mem_mb: int) -> None:
        """Refuses one more running box beside `boxes` of all owners. Unavailable."""
        awake = [box for box in boxes if box.state in AWAKE]
        _check("running boxes on this host", len(awake) + 1, self.running)
        _check(
            "MiB of memory of running boxes on this host",
            sum(box.mem_mb for box in awake) + mem_mb,
            self.mem_mb,
        )
        free = self.free()
        if free < self.free_mb:
            raise Unavailable(
                f"limit reached: {self.free_mb} MiB of disk space stay free on this host, "
                f"{free} MiB are; remove boxes or files that are not needed"
            )

    def free(self) -> int:
        """MiB that are free now."""
        return free_mb(self.state_dir)


def host_limits(
    state_dir: Path,
    *,
    running: int | None = None,
    memory: int | None = None,
    free: int | None = None,
    ceiling: bool = True,
    meminfo: Path = MEMINFO,
) -> HostLimits:
    """The operator's limits, and for what is None those that fit this host.

    `memory` and `free` in bytes; `ceiling`: all boxes together have one of memory.
    """
    disk = os.statvfs(state_dir)
    disk_mb = disk.f_blocks * disk.f_frsize // _MIB
    return HostLimits(
        state_dir=state_dir,
        running=RUNNING if running is None else running,
        mem_mb=(OVERCOMMIT if ceiling else 1) * (memory_for_boxes(meminfo) // _MIB)
        if memory is None
        else memory // _MIB,
        free_mb=min(FREE_MB, disk_mb // FREE_SHARE) if free is None else free // _MIB,
    )


def check_floor(state_dir: Path, free: int | None) -> None:
    """Refuses an operator's floor of free space, in bytes, that the disk can never have: no box
    would ever start. BadRequest."""
    disk = os.statvfs(state_dir)
    size_mb = disk.f_blocks * disk.f_frsize // _MIB
    if free is not None and free // _MIB >= size_mb:
        raise BadRequest(
            f"--min-free: {free // _MIB} MiB can never be free on the disk of {state_dir}, which "
            f"has {size_mb} MiB: no box would start; give less"
        )


def free_mb(state_dir: Path) -> int:
    """MiB that are free below a directory for who is not root."""
    disk = os.statvfs(state_dir)
    return disk.f_bavail * disk.f_frsize // _MIB


def _check(limit: str, wanted: int, allowed: int) -> None:
    if wanted > allowed:
        raise Unavailable(
            f"limit reached: {allowed} {limit}; try again when others have suspended or removed "
            "some"
        )
