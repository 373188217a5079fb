"""Resolves paths to inodes: the only module for `..`, NUL, length limits and the symlink policy."""

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
        """The calls of a Filesystem that `resolve` uses."""

        async def lookup(self, parent: Ino, name: bytes) -> Attr:
            """Return the attributes of a name in a directory. Raises NotFound, NotDirectory."""
            ...

        async def getattr(self, ino: Ino) -> Attr:
            """Return the attributes of an inode. Raises NotFound."""
            ...

        async def readlink(self, ino: Ino) -> bytes:
            """Return the target of a symbolic link. Raises InvalidArgument for other inodes."""
            ...

        async def parent(self, ino: Ino) -> Ino:
            """Return the parent of a directory. The root is its own parent."""
            ...


MAX_SYMLINKS = 40
"""Maximum number of symbolic links on one path (Linux)."""
MOUNT_POINT = b"/wrk"
"""Mount point in boxes. An absolute link target must be below it."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The result of `resolve`. The root is its own parent, and its name is empty.

    `attr` is None if the last name does not exist.
    """

    parent: Ino
    name: bytes
    attr: Attr | None


def split(path: bytes) -> list[bytes]:
    """Return the names of a path. Empty segments are dropped, so `` and `/` give [].

    Raises InvalidArgument for `.`, `..` and NUL, NameTooLong above the limits.
    """
    if b"\0" in path:
        raise InvalidArgument("the path contains a NUL byte")
    if len(path) > PATH_MAX:
        raise NameTooLong(f"the path has {len(path)} bytes; at most {PATH_MAX} are allowed")
    names = [name for name in path.split(b"/") if name]
    for name in names:
        if name in (b".", b".."):
            raise InvalidArgument("`.` and `..` are not allowed in a path")
        if len(name) > NAME_MAX:
            raise NameTooLong(f"the name has {len(name)} bytes; at most {NAME_MAX} are allowed")
    return names


async def resolve(fs: Tree, path: bytes, *, follow: bool = True) -> Resolved:
    """Walk a path from the root. With `follow`, a symbolic link as last name is followed.

    Links are resolved inside the volume. A link that points outside it raises NotFound. Raises
    NotFound and NotDirectory for names before the last one, SymlinkLoop, and the errors of `split`.
    """
    steps = deque(split(path))
    directory, name, attr = ROOT_INO, b"", await fs.getattr(ROOT_INO)
    links = 0
    while steps:
        step = steps.popleft()
        if not attr.is_dir:
            raise NotDirectory
        if step == b"..":
            # This step is from a link's target, because `split` rejects `..` in the path. The root
            # has no parent in a volume.
            if attr.ino == ROOT_INO:
                raise NotFound
            attr = await fs.getattr(await fs.parent(attr.ino))
            directory, name = attr.ino, b""
            continue
        parent = attr.ino
        try:
            child = await fs.lookup(parent, step)
        except NotFound:
            if steps:
                raise
            return Resolved(parent, step, None)
        if child.is_symlink and (steps or follow):
            links += 1
            if links > MAX_SYMLINKS:
                raise SymlinkLoop
            target = await fs.readlink(child.ino)
            steps.extendleft(reversed(_target_names(target)))
            if target.startswith(b"/"):
                directory, name, attr = ROOT_INO, b"", await fs.getattr(ROOT_INO)
            continue
        directory, name, attr = parent, step, child
    return Resolved(directory, name, attr)


def _target_names(target: bytes) -> list[bytes]:
    """Return the names of a link's target, relative to the link's directory or to the root."""
    if target.startswith(b"/"):
        if target != MOUNT_POINT and not target.startswith(MOUNT_POINT + b"/"):
            raise NotFound
        target = target[len(MOUNT_POINT) :]
    return [step for step in target.split(b"/") if step not in (b"", b".")]
