"""Clones and snapshots on a drive, for HTTP and MCP, over `wrkfs.upkeep.copies`.

Errors are those of the service. Each operation is one step of the drive: it takes effect as a
whole, or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from boxd.errors import BadRequest, NotFound
from boxd.names import filenames
from boxd.names.words import shown
from boxd.workspaces.drive import PATIENCE, step
from wrkfs import errors as drive_errors
from wrkfs import paths
from wrkfs.types import RenameFlags
from wrkfs.upkeep import copies

if TYPE_CHECKING:
    from datetime import datetime

    from boxd.workspaces.drive import Filesystem
    from wrkfs.types import Snapshot

NAME = "^[A-Za-z0-9_][A-Za-z0-9_.:+@-]{0,99}$"
"""Pattern of the names of snapshots."""
_NO_DRIVE = "the drive is empty: it was never used"


@dataclass(frozen=True, slots=True)
class SnapshotView:
    """A snapshot as HTTP and MCP show it. `bytes` is the size of its files, without holes."""

    name: str
    path: bytes
    created: datetime
    inodes: int
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {
            "name": self.name,
            **filenames.members("path", b"/" + self.path),
            "created": self.created.isoformat(),
            "inodes": self.inodes,
            "bytes": self.bytes,
        }


@dataclass(frozen=True, slots=True)
class RestoreOrder:
    """What to restore: a path of a snapshot (None: all of it), its new path, and whether it may
    replace what is there."""

    name: str
    path: bytes | None = None
    to: bytes | None = None
    replace: bool = False


async def snapshots(filesystem: Filesystem | None) -> list[SnapshotView]:
    """Return the snapshots of a drive, the oldest first; None is a drive that was never used."""
    if filesystem is None:
        return []
    async with step("the list of snapshots", PATIENCE):
        return [_view(one) for one in await filesystem.snapshots()]


async def create_snapshot(
    filesystem: Filesystem | None, path: bytes, name: str | None
) -> SnapshotView:
    """Make a snapshot of the tree at a path. Raises NotFound, Conflict, BadRequest, DriveFull."""
    drive = _existing(filesystem)
    async with step(_label(path), PATIENCE, missing=True):
        encoded = None if name is None else name.encode("utf-8", "replace")
        return _view(await copies.create_snapshot(drive, path, encoded))


async def remove_snapshot(filesystem: Filesystem | None, name: str) -> None:
    """Remove a snapshot for good. Raises NotFound, BadRequest."""
    drive = _existing(filesystem)
    async with step(f"snapshot {shown(name)}", PATIENCE):
        await copies.remove_snapshot(drive, name.encode("utf-8", "replace"))


async def restore_snapshot(filesystem: Filesystem | None, order: RestoreOrder) -> bytes:
    """Copy a path of a snapshot back; return the path of the copy. Raises NotFound, Conflict."""
    drive = _existing(filesystem)
    async with step(f"snapshot {shown(order.name)}", PATIENCE, missing=True):
        path = await copies.restore(
            drive,
            order.name.encode("utf-8", "replace"),
            order.path,
            to=order.to,
            replace=order.replace,
        )
        return b"/" + path


async def clone(filesystem: Filesystem | None, source: bytes, target: bytes) -> None:
    """Copy the tree at a path to a free path. Raises NotFound, Conflict, DriveFull, TooLarge."""
    drive = _existing(filesystem)
    async with step(_label(target), PATIENCE, missing=True):
        await copies.clone(drive, source, target)


async def move(
    filesystem: Filesystem | None, source: bytes, target: bytes, *, replace: bool
) -> None:
    """Move a file or directory to another path in one step, as rename(2) does.

    Without `replace`, raises Conflict if something exists at the target. Raises NotFound, and
    BadRequest for the root.
    """
    drive = _existing(filesystem)
    flags = RenameFlags.NONE if replace else RenameFlags.NOREPLACE
    since = drive.losses
    async with step(_label(source), PATIENCE, missing=True):
        old = await paths.resolve(drive, source, follow=False)
        new = await paths.resolve(drive, target, follow=False)
        if not old.name or not new.name:
            raise BadRequest("the root of the drive cannot be moved or replaced")
        if old.attr is None:
            raise drive_errors.NotFound
        await drive.rename(old.parent, old.name, new.parent, new.name, flags)
        await drive.sync(since)


def _existing(filesystem: Filesystem | None) -> Filesystem:
    if filesystem is None:
        raise NotFound(_NO_DRIVE)
    return filesystem


def _view(snapshot: Snapshot) -> SnapshotView:
    return SnapshotView(
        snapshot.name.decode("ascii"),
        snapshot.path,
        snapshot.created_at,
        snapshot.inodes,
        snapshot.bytes,
    )


def _label(path: bytes) -> str:
    return shown("/" + path.strip(b"/").decode("utf-8", "surrogateescape"))
