"""Disks of boxes without boxes: a plain disk, and a disk on its own btrfs volume."""

from __future__ import annotations

import secrets
import shutil
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from boxd.backends.disks.disk import Disk, PlainDisk
from boxd.backends.disks.subvolume import SubvolumeDisk
from boxd.backends.disks.volume import Volume
from boxd.backends.host.mounts import unmount
from boxd.backends.host.names import BoxPaths

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

KINDS = ("plain", "btrfs")
VOLUME_SIZE = 300 << 20


@dataclass
class DiskHost:
    """A disk, an image for the roots, and the directories of the test's boxes."""

    disk: Disk
    state_dir: Path
    image: Path
    made: list[BoxPaths] = field(default_factory=list)

    def paths(self) -> BoxPaths:
        """Return the paths of a new box, which has no files yet."""
        name = secrets.token_hex(8)
        paths = BoxPaths(self.state_dir / "boxes" / name, self.state_dir / "mounts" / name)
        paths.directory.mkdir(parents=True)
        self.made.append(paths)
        return paths

    async def box(self, limit_mb: int = 0) -> BoxPaths:
        """Create a box with an empty layer and mount its root."""
        paths = self.paths()
        await self.disk.create(paths, limit_mb)
        await self.disk.mount(paths, self.image, 0)
        return paths

    async def clone(self, snapshot_id: str, limit_mb: int = 0) -> BoxPaths:
        """Create a box from a snapshot and mount its root."""
        paths = self.paths()
        await self.disk.clone(snapshot_id, paths, limit_mb)
        await self.disk.mount(paths, self.image, 0)
        return paths


@asynccontextmanager
async def open_disk_host(kind: str, directory: Path) -> AsyncIterator[DiskHost]:
    """Yield an empty disk of a kind below a directory; unmount all of it at the end."""
    state_dir, image = directory / "state", directory / "image"
    state_dir.mkdir()
    (image / "etc").mkdir(parents=True)
    (image / "etc/motd").write_text("image\n")
    (image / "etc/gone").write_text("image\n")
    (image / "etc/kept").write_text("image\n")
    (image / "lib").mkdir()
    (image / "lib/code").write_text("image\n")
    volume = Volume(state_dir, VOLUME_SIZE if kind == "btrfs" else 0)
    if kind == "btrfs":
        await volume.open()
    disk = SubvolumeDisk(volume) if kind == "btrfs" else PlainDisk(state_dir / "snapshots")
    host = DiskHost(disk, state_dir, image)
    try:
        yield host
    finally:
        for paths in host.made:
            unmount(paths.old_root, lazily=True)
        await volume.close()
        shutil.rmtree(state_dir)
