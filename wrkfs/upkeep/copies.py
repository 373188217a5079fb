"""Clones and snapshots by path: the operations that the command line, HTTP and MCP offer.

A snapshot NAME of the directory at PATH appears below `/.snapshots/NAME`, read-only. Every client
of the drive can read it there, so a user restores a file by copying it. `restore` does the same
without copying bytes.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from wrkfs.errors import (
    ArgumentTooBig,
    Busy,
    Exists,
    NoSpace,
    NotDirectory,
    NotFound,
)
from wrkfs.meta.rules import SNAPSHOTS_MAX, SNAPSHOTS_NAME, TREE_MAX, is_read_only
from wrkfs.paths import resolve

if TYPE_CHECKING:
    from wrkfs.fs import Filesystem
    from wrkfs.paths import Resolved
    from wrkfs.types import Attr, Snapshot

_TOO_LARGE = f"a tree of more than {TREE_MAX} names cannot be copied in one call; copy its parts"


def default_name(now: datetime | None = None) -> bytes:
    """Return the name of a snapshot made at a moment: `2026-11-27T13-05-59Z`."""
    return f"{now or datetime.now(UTC):%Y-%m-%dT%H-%M-%SZ}".encode()


async def create_snapshot(fs: Filesystem, path: bytes, name: bytes | None = None) -> Snapshot:
    """Make a snapshot of the tree at a path; the default of `name` is the time.

    Raises NotFound, Exists, InvalidArgument, QuotaExceeded, NoSpace, Busy, ArgumentTooBig.
    """
    source = await _existing(fs, path, follow=True)
    name = default_name() if name is None else name
    try:
        return await fs.create_snapshot(source.ino, name, path.strip(b"/"))
    except Exists:
        raise Exists("a snapshot of this name exists; choose another name") from None
    except NoSpace:
        raise NoSpace(
            f"the drive has {SNAPSHOTS_MAX} snapshots, the maximum; remove one first"
        ) from None
    except Busy:
        raise Busy(
            "the drive has its own file or directory `.snapshots`; rename it, and try again"
        ) from None
    except ArgumentTooBig:
        raise ArgumentTooBig(_TOO_LARGE) from None


async def remove_snapshot(fs: Filesystem, name: bytes) -> None:
    """Remove a snapshot for good. Raises NotFound, InvalidArgument."""
    try:
        await fs.remove_snapshot(name)
    except NotFound:
        raise NotFound("no snapshot has this name") from None


async def restore(
    fs: Filesystem,
    name: bytes,
    path: bytes | None = None,
    *,
    to: bytes | None = None,
    replace: bool = False,
) -> bytes:
    """Copy a path of a snapshot back to the drive; return the path of the copy.

    `path` is the path on the drive at the time of the snapshot; the default is all of the snapshot.
    The copy gets that path, or `to`; its directory must exist. If something exists there, the call
    raises Exists, or with `replace` moves it to the trash in the same step.

    Raises NotFound, NotDirectory, Exists for the root of the drive, QuotaExceeded.
    """
    snapshot = next((one for one in await fs.snapshots() if one.name == name), None)
    if snapshot is None:
        raise NotFound("no snapshot has this name")
    path = snapshot.path if path is None else path.strip(b"/")
    inside = _below(path, snapshot.path)
    if inside is None:
        raise NotFound(f"the snapshot has only paths below {_shown(snapshot.path)}")
    source = await _existing(fs, b"/".join((SNAPSHOTS_NAME, name, inside)), follow=False)
    # A symbolic link on the way may lead out of the snapshot.
    if not is_read_only(source.ino):
        raise NotFound(f"the snapshot has no {_shown(path)}")
    target = path if to is None else to.strip(b"/")
    await _clone(fs, source, target, replace=replace)
    return target


async def clone(fs: Filesystem, source: bytes, target: bytes) -> Attr:
    """Copy the tree at a path to a path that does not exist. Returns the attributes of the copy.

    Raises NotFound, Exists, NotDirectory, ReadOnly, QuotaExceeded, ArgumentTooBig.
    """
    return await _clone(fs, await _existing(fs, source, follow=True), target, replace=False)


async def _clone(fs: Filesystem, source: Attr, target: bytes, *, replace: bool) -> Attr:
    place = await _place(fs, target)
    if not place.name:
        raise Exists("the root of the drive cannot be replaced; give another path for the copy")
    try:
        return await fs.clone(source.ino, place.parent, place.name, replace=replace)
    except Exists:
        raise Exists(f"{_shown(target)} exists; remove it, or give another path") from None
    except ArgumentTooBig:
        raise ArgumentTooBig(_TOO_LARGE) from None


async def _existing(fs: Filesystem, path: bytes, *, follow: bool) -> Attr:
    attr = (await resolve(fs, path, follow=follow)).attr
    if attr is None:
        raise NotFound(f"{_shown(path)} does not exist")
    return attr


async def _place(fs: Filesystem, path: bytes) -> Resolved:
    try:
        return await resolve(fs, path, follow=False)
    except (NotFound, NotDirectory) as error:
        raise type(error)(f"the directory of {_shown(path)} does not exist") from None


def _below(path: bytes, top: bytes) -> bytes | None:
    """Return a path relative to a directory; None if it is not below it."""
    if path == top or not top:
        return path if not top else b""
    return path[len(top) + 1 :] if path.startswith(top + b"/") else None


def _shown(path: bytes) -> str:
    return repr("/" + path.strip(b"/").decode("utf-8", "replace"))
