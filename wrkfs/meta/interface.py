"""What a metadata store does. Implementations: `postgres` (real), `memory` (tests, simulation).

Every method is one atomic step: it happens wholly or not at all, and when it returns every
operation that starts afterwards, on any session, sees it. Mutating methods are idempotent under
the store's own retries: a connection lost after the commit never turns into EEXIST or ENOENT.
Failures are raised as `wrkfs.errors`; `Unavailable` after the deadline; `Fenced` once the session
has been fenced, and the call has changed nothing; `Doubtful` when that is unknown. Every call names
entries by raw names: `.`, `..`, `/` and NUL give InvalidArgument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from wrkfs.meta.upkeep import UpkeepStore
from wrkfs.types import RenameFlags, XattrFlags

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wrkfs.types import (
        Attr,
        Caller,
        Commit,
        Dentry,
        FileMap,
        Ino,
        Moved,
        SessionId,
        SetAttr,
        SliceId,
        StatFs,
    )


class MetaStore(UpkeepStore, Protocol):
    """Metadata of one volume, as seen by one mount session."""

    @property
    def session(self) -> SessionId:
        """The registered session; valid between `start` and `close`."""
        ...

    @property
    def epoch(self) -> int:
        """Generation of the registration; it grows with each `rejoin`.

        A file opened under an older epoch is no longer sustained until it is opened anew.
        """
        ...

    async def rejoin(self) -> None:
        """Registers anew after `Fenced`, with a higher epoch and no open files.

        Never done by the store itself: the caller first refuses what was written under the old
        epoch and not committed, and tells it to the handles open then.
        """
        ...

    async def start(self) -> None:
        """Connects and registers a session with heartbeat. Raises Unavailable."""
        ...

    async def close(self) -> None:
        """Ends the session: its sustained inodes are let go. Idempotent."""
        ...

    def watch(self, on_crash: Callable[[bool], None]) -> None:
        """Says who is told that the database came back from a crash, before it answers again.

        Versions may have stepped back then, so what was cached is void; True says that changes
        which this session was answered, and which nothing had made durable, are undone. What the
        session holds open stays sustained.
        """
        ...

    # -- names --

    async def lookup(self, parent: Ino, name: bytes) -> Attr:
        """Attributes of a name. `.` and `..` are not names here. NotFound, NotDirectory."""
        ...

    async def readdir(self, ino: Ino, after: int, limit: int) -> list[Dentry]:
        """Entries with cookie > `after` in cookie order, without `.` and `..`; [] at the end.

        A scan by the last cookie seen neither skips nor repeats entries that stay.
        """
        ...

    async def parent(self, ino: Ino) -> Ino:
        """The parent of a directory; the root is its own parent."""
        ...

    # -- inodes --

    async def getattr(self, ino: Ino) -> Attr:
        """Attributes, also of a sustained inode. NotFound when it is gone.

        What went to the trash only just (10 s) is still answered, here and by `open`: the kernel
        looks a name up first and then asks for the inode, and the name may be replaced in between.
        """
        ...

    async def setattr(self, ino: Ino, changes: SetAttr) -> Attr:
        """Applies all changes at once; a size change cuts or extends (a hole). ctime moves."""
        ...

    async def touch(self, atimes: Mapping[Ino, int]) -> None:
        """Moves access times forward, and nothing else; inodes that are gone are passed over.

        Each inode is a step of its own; none is durable before the next durable call.
        """
        ...

    async def readlink(self, ino: Ino) -> bytes:
        """Target of a symbolic link. InvalidArgument for anything else."""
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
        """Creates a regular file and opens it (see `open`); True when it was made just now.

        An existing regular file is opened as it is unless `exclusive` (Exists). A setgid directory
        passes on its group. `durable`: as `sync`, in the same step. Exists, IsDirectory, NotFound,
        QuotaExceeded.
        """
        ...

    async def mknod(self, parent: Ino, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        """Creates a regular file, fifo, socket or device node; `mode` holds the type.

        `rdev` is kept for device nodes only. Exists, NotFound, NotPermitted for other types.
        """
        ...

    async def mkdir(self, parent: Ino, name: bytes, mode: int, caller: Caller) -> Attr:
        """Creates a directory. A setgid parent passes on group and setgid bit."""
        ...

    async def symlink(self, parent: Ino, name: bytes, target: bytes, caller: Caller) -> Attr:
        """Creates a symbolic link of mode 0777."""
        ...

    async def link(self, ino: Ino, parent: Ino, name: bytes) -> Attr:
        """Another name for a non-directory. NotPermitted (directory), TooManyLinks, Exists."""
        ...

    async def unlink(self, parent: Ino, name: bytes) -> int | None:
        """Removes a name of a non-directory; the inode lives on while sustained anywhere.

        Answers the directory's new mtime and ctime (ns), None where they are not known.
        """
        ...

    async def rmdir(self, parent: Ino, name: bytes) -> int | None:
        """Removes an empty directory; answers as `unlink`. NotEmpty, NotDirectory."""
        ...

    async def remove_tree(
        self, parent: Ino, name: bytes, *, if_version: tuple[Ino, int] | None = None
    ) -> None:
        """Removes a name with everything below it; a symbolic link itself, not its target.

        The name disappears in the first step, so no one sees the tree half removed. `if_version`
        demands that exact inode and version under the name: else PreconditionFailed.
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
        """Moves a name, replacing the target as rename(2) does. InvalidArgument for loops.

        None: nothing was moved, or it is not known when.
        """
        ...

    # -- files --

    async def open(self, ino: Ino, *, truncate: bool = False) -> FileMap:
        """Registers an open handle of this session, which sustains the inode; gives its map."""
        ...

    async def release(self, ino: Ino) -> None:
        """Drops one handle; the last one of an unlinked inode anywhere frees it, soon."""
        ...

    async def file_map(self, ino: Ino) -> FileMap:
        """The present slices and attributes in one snapshot."""
        ...

    async def reserve_slices(self, count: int) -> SliceId:
        """Gives this session the ids [result, result + count), never given before."""
        ...

    async def commit(self, commit: Commit) -> Attr:
        """Makes extents visible; size and mtime move, version grows. QuotaExceeded, Stale.

        InvalidArgument for a slice that is garbage: its objects may be gone.
        """
        ...

    async def create_unlinked(self, mode: int, caller: Caller) -> FileMap:
        """A regular file with no name, sustained by this session until `release`."""
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
        """Gives an unlinked inode its name, atomically replacing a regular file there.

        True when nothing was replaced. `if_version` demands that exact inode and version,
        `if_absent` that there is nothing: else PreconditionFailed. The replaced file's mode and
        owner are kept. IsDirectory when a directory is in the way.
        """
        ...

    # -- the volume --

    async def statfs(self) -> StatFs:
        """Exact use and limits. Bytes are `Attr.held`, inodes all but the root."""
        ...

    async def sync(self) -> None:
        """Makes everything that was answered before survive a crash of the database.

        Durable commits and `publish` imply it; names and attributes need it (fsync of a directory
        or of a clean file, syncfs, an answer over HTTP).
        """
        ...

    # -- extended attributes --

    async def getxattr(self, ino: Ino, name: bytes) -> bytes:
        """Value of an attribute. NoData."""
        ...

    async def setxattr(
        self, ino: Ino, name: bytes, value: bytes, flags: XattrFlags = XattrFlags.NONE
    ) -> None:
        """Sets an attribute. Exists (CREATE), NoData (REPLACE), ArgumentTooBig (> 64 KiB)."""
        ...

    async def listxattr(self, ino: Ino) -> list[bytes]:
        """Names of all attributes, sorted."""
        ...

    async def removexattr(self, ino: Ino, name: bytes) -> None:
        """Removes an attribute. NoData."""
        ...
