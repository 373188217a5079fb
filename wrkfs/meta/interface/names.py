"""Names of a metadata store: lookups, listings, and every change of a directory entry.

The rules in `wrkfs.meta.interface.store` hold for every method. Names are raw bytes: `.`, `..`, and
names with `/` or NUL raise InvalidArgument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from wrkfs.types import RenameFlags

if TYPE_CHECKING:
    from wrkfs.types import Attr, Caller, Dentry, FileMap, Ino, Moved, Spot


class NameStore(Protocol):
    """Directory entries of one volume, as one mount session sees them."""

    async def lookup(self, parent: Ino, name: bytes) -> Attr:
        """Return the attributes of a name. Raises NotFound, NotDirectory.

        `.` and `..` are not entries, so this method does not resolve them.
        """
        ...

    async def readdir(self, ino: Ino, after: int, limit: int) -> list[Dentry]:
        """Return entries with a cookie above `after`, in cookie order; [] at the end.

        The result excludes `.` and `..`. A scan that passes the last cookie it has seen neither
        skips nor repeats an entry that stays in the directory.
        """
        ...

    async def parent(self, ino: Ino) -> Ino:
        """Return the parent of a directory. The root is its own parent."""
        ...

    async def create(
        self,
        parent: Ino,
        name: bytes,
        mode: int,
        caller: Caller,
        *,
        exclusive: bool,
        durable: bool = False,
    ) -> tuple[FileMap, bool]:
        """Create a regular file and open it as `FileStore.open` does; True if the file is new.

        If a regular file of that name exists, the call opens it unchanged, or raises Exists if
        `exclusive`. A setgid directory passes on its group. `durable` has the effect of
        `FileStore.sync` in the same step. Raises Exists, IsDirectory, NotFound, QuotaExceeded.
        """
        ...

    async def mknod(self, parent: Ino, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        """Create a regular file, fifo, socket or device node; `mode` contains the type.

        The store saves `rdev` for device nodes only. Raises Exists, NotFound, and NotPermitted for
        other types.
        """
        ...

    async def mkdir(self, parent: Ino, name: bytes, mode: int, caller: Caller) -> Attr:
        """Create a directory. A setgid parent passes on its group and setgid bit."""
        ...

    async def symlink(self, parent: Ino, name: bytes, target: bytes, caller: Caller) -> Attr:
        """Create a symbolic link of mode 0777."""
        ...

    async def link(self, ino: Ino, parent: Ino, name: bytes) -> Attr:
        """Give a non-directory another name.

        Raises NotPermitted for a directory, TooManyLinks, Exists.
        """
        ...

    async def unlink(self, parent: Ino, name: bytes) -> int | None:
        """Remove a name of a non-directory. The inode exists while a session sustains it.

        Returns the new mtime and ctime of the directory in ns, or None if the store does not know
        them.
        """
        ...

    async def rmdir(self, parent: Ino, name: bytes) -> int | None:
        """Remove an empty directory; return as `unlink` does. Raises NotEmpty, NotDirectory."""
        ...

    async def remove_tree(
        self, parent: Ino, name: bytes, *, if_version: tuple[Ino, int] | None = None
    ) -> None:
        """Remove a name and everything below it; if the name is a symbolic link, only the link.

        The name disappears in the first step, so no session sees a partly removed tree. With
        `if_version`, the name must refer to that inode at that version; otherwise the call raises
        PreconditionFailed.
        """
        ...

    async def rename(
        self,
        parent: Ino,
        name: bytes,
        new_parent: Ino,
        new_name: bytes,
        flags: RenameFlags = RenameFlags.NONE,
    ) -> Moved | None:
        """Move a name and replace the target as rename(2) does. Raises InvalidArgument for loops.

        Returns None if nothing moved, or if the store does not know the time of the move.
        """
        ...

    async def publish(
        self,
        ino: Ino,
        parent: Ino,
        name: bytes,
        *,
        if_version: tuple[Ino, int] | None = None,
        if_absent: bool = False,
    ) -> bool:
        """Give an unlinked inode a name, and atomically replace a regular file of that name.

        Returns True if it replaced nothing. The new file takes the mode and owner of the replaced
        one. With `if_version`, the name must refer to that inode at that version; with
        `if_absent`, the name must not exist; otherwise the call raises PreconditionFailed. Raises
        IsDirectory if the name refers to a directory.
        """
        ...

    async def restore(self, ino: Ino, parent: Ino, name: bytes, link: Spot | None = None) -> Attr:
        """Give an inode in the trash a name. A restored directory is empty.

        `link` is the directory and name of a linked trash entry. The call uses that entry up; the
        inode may have other names, and all of them then refer to one file.

        Raises NotFound if the inode is not in the trash or the directory does not exist, and
        NotDirectory, Exists, QuotaExceeded, TooManyLinks. Raises Busy while the store still takes
        a removed tree apart.
        """
        ...
