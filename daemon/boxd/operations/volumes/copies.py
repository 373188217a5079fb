"""Clones and snapshots on the drive of a workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.workspaces import copies

if TYPE_CHECKING:
    from boxd.operations.drives import DriveOperations
    from boxd.principal import Principal
    from boxd.workspaces.copies import RestoreOrder, SnapshotView


class CopyOperations:
    """Copies trees of drives, and lists and removes snapshots. Holds no state.

    All methods raise NotFound and Unavailable as `DriveOperations.open` does. Those that change the
    drive need the right to write to it.
    """

    def __init__(self, drives: DriveOperations) -> None:
        self._drives = drives

    async def list_snapshots(self, p: Principal, ws: str | None = None) -> list[SnapshotView]:
        """Return the snapshots of a drive, the oldest first."""
        async with self._drives.open(p, ws) as filesystem:
            return await copies.snapshots(filesystem)

    async def create_snapshot(
        self, p: Principal, path: bytes, name: str | None, ws: str | None = None
    ) -> SnapshotView:
        """Make a snapshot of the tree at a path; the default of `name` is the time.

        Raises Conflict if a snapshot has this name, DriveFull, BadRequest, TooLarge.
        """
        require(p, Action.WRITE_DRIVE)
        async with self._drives.open(p, ws) as filesystem:
            return await copies.create_snapshot(filesystem, path, name)

    async def remove_snapshot(self, p: Principal, name: str, ws: str | None = None) -> None:
        """Remove a snapshot for good."""
        require(p, Action.WRITE_DRIVE)
        async with self._drives.open(p, ws) as filesystem:
            await copies.remove_snapshot(filesystem, name)

    async def restore_snapshot(
        self, p: Principal, order: RestoreOrder, ws: str | None = None
    ) -> bytes:
        """Copy a path of a snapshot back to the drive; return the path of the copy.

        Raises Conflict if something exists there and `order` does not replace it.
        """
        require(p, Action.WRITE_DRIVE)
        async with self._drives.open(p, ws) as filesystem:
            return await copies.restore_snapshot(filesystem, order)

    async def clone(
        self, p: Principal, source: bytes, target: bytes, ws: str | None = None
    ) -> None:
        """Copy the tree at a path to a free path. Raises Conflict, DriveFull, TooLarge."""
        require(p, Action.WRITE_DRIVE)
        async with self._drives.open(p, ws) as filesystem:
            await copies.clone(filesystem, source, target)

    async def move(
        self, p: Principal, source: bytes, target: bytes, ws: str | None = None, *, replace: bool
    ) -> None:
        """Move a file or directory to another path. Raises NotFound, Conflict and BadRequest."""
        require(p, Action.WRITE_DRIVE)
        async with self._drives.open(p, ws) as filesystem:
            await copies.move(filesystem, source, target, replace=replace)
