"""Paths: bytes to inodes. The only home of `..`, NUL, length limits and the symlink policy."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wrkfs.errors import InvalidArgument, NameTooLong, NotDirectory, NotFound, SymlinkLoop
from wrkfs.layout import NAME_MAX, PATH_MAX
from wrkfs.types import ROOT_INO

if TYPE_CHECKING:
    from typing import Protocol

    from wrkfs.types import Attr, Ino

    class Tree(Protocol):
        """What `resolve` needs of a Filesystem."""

        async def lookup(self, parent: Ino, name: bytes) -> Attr: ...
        async def getattr(self, ino: Ino) -> Attr: ...
        async def readlink(self, ino: Ino) -> bytes: ...
        async def parent(self, ino: Ino) -> Ino: ...


MAX_SYMLINKS = 40
"""Symbolic links on one path (Linux)."""
MOUNT_POINT = b"/wrk"
"""Where boxes see the volume: an absolute target counts only below it."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """Where a path leads. The root is its own parent and has the empty name.

    `attr` is None when the last name does not exist.
    """

    parent: Ino
    name: bytes
    attr: Attr | None


def split(path: bytes) -> list[bytes]:
    """The names of a path from outside; empty segments collapse, so `` and `/` give [].

    Raises InvalidArgument for `.`, `..` and NUL, NameTooLong above the limits.
    """
    if b"\0" in path:
        raise InvalidArgument("NUL in a path")
    if len(path) > PATH_MAX:
        raise NameTooLong(f"path of {len(path)} bytes; at most {PATH_MAX} are allowed")
    names = [name for name in path.split(b"/") if name]
    for name in names:
        if name in (b".", b".."):
            raise InvalidArgument("`.` and `..` are not allowed in a path")
        if len(name) > NAME_MAX:
            raise NameTooLong(f"name of {len(name)} bytes; at most {NAME_MAX} are allowed")
    return names


async def resolve(fs: Tree, path: bytes, *, follow: bool = True) -> Resolved:
    """Walks a path from the root. `follow` tells whether a last symbolic link is followed.

    Links are resolved inside the volume; one that leads out of it is NotFound. Raises NotFound and
    NotDirectory for what stands before the last name, SymlinkLoop, and what `split` raises.
    """
    todo = deque(split(path))
    directory, name, attr = ROOT_INO, b"", await fs.getattr(ROOT_INO)
    links = 0
    while todo:
        step = todo.popleft()
        if not attr.is_dir:
            raise NotDirectory
        if step == b"..":
            # Only from a link's target. Above the root there is nothing of the volume.
            if attr.ino == ROOT_INO:
                raise NotFound
            attr = await fs.getattr(await fs.parent(attr.ino))
            directory, name = attr.ino, b""
            continue
        inside = attr.ino
        try:
            found = await fs.lookup(inside, step)
        except NotFound:
            if todo:
                raise
            return Resolved(inside, step, None)
        if found.is_symlink and (todo or follow):
            links += 1
            if links > MAX_SYMLINKS:
                raise SymlinkLoop
            target = await fs.readlink(found.ino)
            todo.extendleft(reversed(_target_names(target)))
            if target.startswith(b"/"):
                directory, name, attr = ROOT_INO, b"", await fs.getattr(ROOT_INO)
            continue
        directory, name, attr = inside, step, found
    return Resolved(directory, name, attr)


def _target_names(target: bytes) -> list[bytes]:
    """The steps of a link's target, relative to the link's directory or to the root."""
    if target.startswith(b"/"):
        if target != MOUNT_POINT and not target.startswith(MOUNT_POINT + b"/"):
            raise NotFound
        target = target[len(MOUNT_POINT) :]
    return [step for step in target.split(b"/") if step not in (b"", b".")]
