"""The drives of all workspaces as the operations see them: used, measured, and removed whole.

Critical section: `closing` marks a place without an await, and `Volumes` refuses it from then on;
whoever asked before holds a box whose row stands, or a Filesystem that the pool counts.
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
    """Who brings drives into boxes; see boxd.workspaces.host_drives."""

    async def retire(self, owner: str, workspace: str | None, volume_id: str) -> None:
        """Ends the mount of a volume on this host. Conflict while a box uses it."""
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
        """See Drives."""
        return self._pool.use(owner, workspace, create=create)

    async def usage(self, owner: str) -> dict[str | None, DriveUse]:
        """See Drives."""
        return await self._volumes.usage(owner)

    async def sizes(self) -> dict[str, int]:
        """See Drives."""
        return await self._volumes.sizes()

    def closing(self, owner: str, workspace: str) -> AbstractContextManager[None]:
        """See Drives."""
        return self._volumes.closing(owner, workspace)

    async def is_empty(self, owner: str, workspace: str) -> bool:
        """See Drives."""
        return await self._volumes.is_empty(owner, workspace)

    async def remove(self, owner: str, workspace: str) -> datetime | None:
        """See Drives."""
        volume_id = await self._volumes.id_of(owner, workspace)
        if volume_id is None:
            return None
        await self._pool.drop(owner, workspace)
        await self._attacher.retire(owner, workspace, volume_id)
        return await self._volumes.remove(owner, workspace)
