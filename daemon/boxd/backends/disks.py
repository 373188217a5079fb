"""The kinds of disks of one installation: which one new boxes get, and which one a box has."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from boxd.backends.disk import Disk, PlainDisk
from boxd.backends.subvolume_disk import SubvolumeDisk
from boxd.backends.volume import Volume
from boxd.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from boxd.backends.hostnames import BoxPaths, HostNames

_log = logging.getLogger(__name__)


class Disks:
    """Disks with a limit where the host can, and plain ones: for want of it, and for boxes that
    were made without."""

    def __init__(self, names: HostNames, size: int | None) -> None:
        """`size` as in `Volume`."""
        self._plain = PlainDisk(names.snapshots_dir)
        self._volume = Volume(names.state_dir, size)
        self._limited: SubvolumeDisk | None = None
        self._for_new: Disk = self._plain
        self._size = size
        self._why_not = "it was not opened"

    async def open(self) -> None:
        """Finds out what this host can; logs why, when disks have no limit."""
        try:
            await self._volume.open()
        except Unavailable as error:
            self._why_not = str(error)
            _log.log(
                logging.WARNING if self._size or self._volume.made else logging.INFO,
                "disks of boxes have no limit: %s",
                error,
            )
        else:
            self._limited = SubvolumeDisk(self._volume)
        if self._limited is not None and self._size != 0:
            self._for_new = self._limited
        for disk in self._present():
            await disk.sweep()

    async def close(self) -> None:
        """Unmounts what no box uses."""
        await self._volume.close()

    @property
    def for_new(self) -> Disk:
        """What new boxes get."""
        return self._for_new

    def named(self, kind: str) -> Disk:
        """By the name in a box's record. Raises Unavailable with the reason."""
        for disk in self._present():
            if disk.kind == kind:
                return disk
        raise Unavailable(
            f"the box's disk stands on the volume for boxes, which is not there: {self._why_not}"
        )

    async def remove(self, paths: BoxPaths) -> None:
        """Removes what there is of a box's disk.

        What stands on a volume that is not there goes when it comes back.
        """
        for disk in self._present():
            await disk.remove(paths)

    def box_ids(self) -> set[str]:
        """Ids of boxes that have a disk outside of their directories."""
        return set() if self._limited is None else self._limited.box_ids()

    def holding(self, snapshot_id: str) -> Disk:
        """The disk that has a snapshot. Raises NotFound."""
        for disk in self._present():
            if snapshot_id in disk.snapshots():
                return disk
        raise NotFound(f"the backend has no snapshot {snapshot_id}")

    def snapshots(self) -> list[str]:
        """Ids of all snapshots."""
        return sorted(name for disk in self._present() for name in disk.snapshots())

    def _present(self) -> list[Disk]:
        return [self._plain] if self._limited is None else [self._plain, self._limited]
