"""The drives of all workspaces for the operations: use, measure and remove them.

Critical section: `closing` marks a workspace without an await, and `Volumes` then rejects new
users. An earlier user is visible: as the row of a box, or as a Filesystem that the pool counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from datetime import datetime

    from boxd.model.usage import DriveUse
    from boxd.workspaces.pool import DrivePool
    from boxd.workspaces.volumes import Volumes
    from wrkfs.fs import Filesystem


class Attacher(Protocol):
    """Attaches drives to boxes; `HostDrives` and `BoxDrives` implement it."""

    async def retire(self, owner: str, workspace: str | None, volume_id: str) -> None:
        """End the mount of a volume on this host. Raises Conflict while a box uses it."""
        ...


class WorkspaceDrives:
    """Implements `boxd.operations.shared.drives.Drives`."""

    def __init__(self, volumes: Volumes, pool: DrivePool, attacher: Attacher) -> None:
        self._volumes = volumes
        self._pool = pool
        self._attacher = attacher

    def use(
        self, owner: str, workspace: str | None, *, create: bool
    ) -> AbstractAsyncContextManager[Filesystem | None]:
        """Yield the volume's Filesystem; None if it does not exist and `create` is false."""
        return self._pool.use(owner, workspace, create=create)

    async def usage(self, owner: str) -> dict[str | None, DriveUse]:
        """Return the use of each drive of an owner. Raises Unavailable."""
        return await self._volumes.usage(owner)

    async def sizes(self) -> dict[str, int]:
        """Return the bytes in the drives of each owner. Raises Unavailable."""
        return await self._volumes.sizes()

    def closing(self, owner: str, workspace: str) -> AbstractContextManager[None]:
        """Reject new users of a drive with Conflict while the context lasts."""
        return self._volumes.closing(owner, workspace)

    async def is_empty(self, owner: str, workspace: str) -> bool:
        """Return whether the drive has no files, or does not exist. Raises Unavailable."""
        return await self._volumes.is_empty(owner, workspace)

    async def remove(self, owner: str, workspace: str) -> datetime | None:
        """Remove the drive. Return the time until which it can be restored (None: never)."""
        volume_id = await self._volumes.id_of(owner, workspace)
        if volume_id is None:
            return None
        await self._pool.drop(owner, workspace)
        await self._attacher.retire(owner, workspace, volume_id)
        return await self._volumes.remove(owner, workspace)
