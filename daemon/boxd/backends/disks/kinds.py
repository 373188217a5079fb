"""The kinds of disks of one installation: the kind of new boxes, and that of each box."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from boxd.backends.disks.disk import Disk, PlainDisk
from boxd.backends.disks.subvolume import SubvolumeDisk
from boxd.backends.disks.volume import Volume
from boxd.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from boxd.backends.host.names import BoxPaths, HostNames

_log = logging.getLogger(__name__)


class Disks:
    """The disks of one installation.

    Disks have a size limit if the host supports it. Plain disks are for other hosts, and for boxes
    that were created without a limit.
    """

    def __init__(self, names: HostNames, size: int | None) -> None:
        """`size` is that of `Volume`."""
        self._plain = PlainDisk(names.snapshots_dir)
        self._volume = Volume(names.state_dir, size, names.mounts)
        self._limited: SubvolumeDisk | None = None
        self._for_new: Disk = self._plain
        self._size = size
        self._why_not = "the volume was not opened"

    async def open(self) -> None:
        """Open the volume. If disks have no size limit, log the reason."""
        try:
            await self._volume.open()
        except Unavailable as error:
            self._why_not = str(error)
            _log.log(
                logging.WARNING if self._size or self._volume.exists else logging.INFO,
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
        """Unmount the volume, unless boxes use it."""
        await self._volume.close()

    @property
    def for_new(self) -> Disk:
        """The disk that new boxes get."""
        return self._for_new

    def named(self, kind: str) -> Disk:
        """Return the disk of a kind in a box's record. Raises Unavailable with the reason."""
        for disk in self._present():
            if disk.kind == kind:
                return disk
        raise Unavailable(
            f"the box's disk is on the volume for boxes, which is not available: {self._why_not}"
        )

    async def remove(self, paths: BoxPaths) -> None:
        """Remove everything of a box's disk.

        Parts on a volume that is not available are removed when it is available again.
        """
        for disk in self._present():
            await disk.remove(paths)

    def box_ids(self) -> set[str]:
        """Return the ids of boxes that have a disk outside their directories."""
        return set() if self._limited is None else self._limited.box_ids()

    def holding(self, snapshot_id: str) -> Disk:
        """Return the disk that has a snapshot. Raises NotFound."""
        for disk in self._present():
            if snapshot_id in disk.snapshots():
                return disk
        raise NotFound(f"the backend has no snapshot {snapshot_id}")

    def snapshots(self) -> list[str]:
        """Return the ids of all snapshots."""
        return sorted(name for disk in self._present() for name in disk.snapshots())

    def _present(self) -> list[Disk]:
        return [self._plain] if self._limited is None else [self._plain, self._limited]
