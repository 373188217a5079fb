"""Limits of this host for the boxes of all owners together.

Memory caps of boxes are not reservations, because most boxes use only a part. So the sum of the
memory caps of running boxes may be `OVERCOMMIT` times the memory that the host has for boxes. The
cgroup above all boxes keeps the host itself from running short of memory. On a host without that
cgroup the sum is at most the memory for boxes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.backends.host.files import MEMINFO, memory_for_boxes
from boxd.boxes.limits.tier_limits import AWAKE
from boxd.errors import BadRequest, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from boxd.model.box import Box

RUNNING = 500
"""Maximum number of running boxes of all owners, unless the operator sets another number."""
OVERCOMMIT = 4
FREE_MB = 2048
FREE_SHARE = 20
"""MiB of the state directory's disk that stay free: FREE_MB, but at most this part (1/FREE_SHARE)
of the disk.
"""
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Limits over all owners.

    `mem_mb` bounds the sum of the memory caps of running boxes. `free_mb` is the least free space
    below `state_dir`.
    """

    state_dir: Path
    running: int
    mem_mb: int
    free_mb: int

    def check(self, boxes: Sequence[Box], *, mem_mb: int) -> None:
        """Check that the host has capacity for one more box; `boxes` are all others.

        Raises Unavailable.
        """
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
                f"limit reached: this host keeps {self.free_mb} MiB of disk space free, and only "
                f"{free} MiB are free; remove boxes or files that you do not need"
            )

    def free(self) -> int:
        """Return the free space below the state directory, in MiB."""
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
    """Return the operator's limits; a limit of None gets a default that fits this host.

    `memory` and `free` are in bytes. `ceiling`: a cgroup bounds the memory of all boxes together.
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
    """Raise BadRequest if the operator's floor of free space, in bytes, exceeds the disk.

    Otherwise no box could ever start.
    """
    disk = os.statvfs(state_dir)
    size_mb = disk.f_blocks * disk.f_frsize // _MIB
    if free is not None and free // _MIB >= size_mb:
        raise BadRequest(
            f"--min-free: {free // _MIB} MiB can never be free on the disk of {state_dir}, which "
            f"has {size_mb} MiB: no box would start; give less"
        )


def free_mb(state_dir: Path) -> int:
    """Return the MiB below a directory that are free for users other than root."""
    disk = os.statvfs(state_dir)
    return disk.f_bavail * disk.f_frsize // _MIB


def _check(limit: str, required: int, allowed: int) -> None:
    if required > allowed:
        raise Unavailable(
            f"limit reached: {allowed} {limit}; try again when other users have suspended or "
            "removed boxes"
        )
