"""The drive of a workspace, for the surfaces of this process."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.errors import NotFound, Unavailable
from boxd.names.words import shown
from boxd.operations.core import Core, checked_workspace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.principal import Principal
    from boxd.workspaces.drive import Filesystem


class DriveOperations(Core):
    """See the module."""

    @asynccontextmanager
    async def drive(
        self, p: Principal, ws: str | None = None, *, create: bool = False
    ) -> AsyncIterator[Filesystem | None]:
        """The Filesystem of a workspace's volume, for a surface of this process.

        None for a workspace whose drive was never used, unless `create` makes it.
        NotFound for an unknown workspace, which `create` makes (never for a scoped credential);
        Unavailable when drives are not enabled.
        """
        require(p, Action.WRITE_DRIVE if create else Action.READ_DRIVE)
        workspace = checked_workspace(p, ws)
        if self._drives is None:
            raise Unavailable("the workspace drive is not enabled on this host")
        if workspace is not None:
            if create:
                await self._ensure_workspace(p, workspace)
            elif workspace not in await self._store.workspaces(p.owner):
                raise NotFound(f"no workspace {shown(workspace)}")
        async with self._drives.use(p.owner, workspace, create=create) as filesystem:
            yield filesystem
