"""Drives of workspaces, and their parts."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from boxd.clock import SystemClock
from boxd.workspaces.host_drives import HostDrives
from boxd.workspaces.mount_process import MountOptions
from boxd.workspaces.mounts import Mounts
from boxd.workspaces.pool import DrivePool
from boxd.workspaces.workspace_drives import WorkspaceDrives
from tests.doubles.backend import FakeBackend
from tests.harness.workspaces.users import service_users
from wrkfs.types import ROOT_INO, Caller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from boxd.workspaces.volumes import Volumes
    from tests.harness.servers.objectserver import ObjectServer
    from tests.harness.workspaces.volumes import World
    from wrkfs.config import StoreConfig
    from wrkfs.fs import Filesystem

OWNER = "SHA256:owner"
SIZE = 300_000
"""Size of a file in bytes, more than the database stores itself."""


class Parts:
    """The drives and their parts."""

    def __init__(self, world: World, server: ObjectServer, root: Path) -> None:
        self.server = server
        self.volumes: Volumes = world.volumes()
        self.pool = DrivePool(self.volumes, SystemClock())
        mounts = Mounts(
            root / "mounts", MountOptions(service_users(root), root / "cache"), on_restart=_nothing
        )
        self.attacher = HostDrives(self.volumes, mounts, FakeBackend())
        self.drives = WorkspaceDrives(self.volumes, self.pool, self.attacher)

    async def write(self, workspace: str | None, name: bytes = b"file") -> None:
        """Write a file to a drive, which is created for it."""
        async with self.drives.use(OWNER, workspace, create=True) as fs:
            assert fs is not None
            await write(fs, name)

    async def store(self, workspace: str | None) -> StoreConfig:
        """Return the store of its objects, with the administrator's credential."""
        config = await self.volumes.ensure(OWNER, workspace)
        admin = self.server.endpoint
        return replace(config.store, access_key=admin.access_key, secret_key=admin.secret.reveal())


async def _nothing(volume_id: str, path: Path) -> None:
    """Do nothing: no test replaces a mount."""


async def write(fs: Filesystem, name: bytes) -> None:
    """Write a file of `SIZE` bytes."""
    _, handle = await fs.create(ROOT_INO, name, 0o644, os.O_RDWR, Caller(0, 0))
    await handle.write(0, bytes(SIZE))
    await handle.close()


@pytest.fixture
async def parts(world: World, objectserver: ObjectServer, tmp_path: Path) -> AsyncIterator[Parts]:
    """Yield the drives and their parts."""
    made = Parts(world, objectserver, tmp_path)
    yield made
    await made.pool.close()
    await made.attacher.close()
