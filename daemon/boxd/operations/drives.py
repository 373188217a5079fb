"""The drive of a workspace, for HTTP and MCP."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from boxd.authz import Action, checked_workspace, require
from boxd.errors import NotFound, Unavailable
from boxd.names.words import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.model.box import Box
    from boxd.operations.shared.drives import Drives
    from boxd.operations.shared.workspace_registry import WorkspaceRegistry
    from boxd.principal import Principal
    from boxd.store.interface import ControlStore
    from boxd.workspaces.drive import Filesystem


class DriveOperations:
    """Opens the drives of workspaces. Holds no state. `drives` None: drives are disabled."""

    def __init__(
        self, store: ControlStore, registry: WorkspaceRegistry, drives: Drives | None
    ) -> None:
        self._store = store
        self._registry = registry
        self._drives = drives

    @asynccontextmanager
    async def open(
        self, p: Principal, ws: str | None = None, *, create: bool = False
    ) -> AsyncIterator[Filesystem | None]:
        """Yield the Filesystem of a workspace's drive; None if it was never used.

        `create` creates a missing drive, and a missing workspace unless the credential has a scope.
        Raises NotFound for an unknown workspace; Unavailable if drives are not enabled.
        """
        require(p, Action.WRITE_DRIVE if create else Action.READ_DRIVE)
        workspace = checked_workspace(p, ws)
        if self._drives is None:
            raise Unavailable("the workspace drive is not enabled on this host")
        if workspace is not None:
            if create:
                await self._registry.ensure(p, workspace)
            elif workspace not in await self._store.workspaces(p.owner):
                raise NotFound(f"no workspace {shown(workspace)}")
        async with self._drives.use(p.owner, workspace, create=create) as filesystem:
            yield filesystem

    @asynccontextmanager
    async def open_for(self, box: Box) -> AsyncIterator[Filesystem | None]:
        """Yield the Filesystem of a box's drive; None if it was never used.

        The caller must have authenticated the box. Raises Unavailable if drives are not enabled.
        """
        if self._drives is None:
            raise Unavailable("the workspace drive is not enabled on this host")
        async with self._drives.use(box.owner, box.workspace, create=False) as filesystem:
            yield filesystem
