"""Files of a metadata store: attributes, open handles, maps, commits, and the session.

The rules in `wrkfs.meta.interface.store` hold for every method.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from wrkfs.types import XattrFlags

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wrkfs.types import (
        Attr,
        Caller,
        Commit,
        FileMap,
        Ino,
        SessionId,
        SetAttr,
        SliceId,
        StatFs,
        Stretch,
    )


class FileStore(Protocol):
    """Inodes of one volume, as one mount session sees them, and the life of that session."""

    # -- the session --

    @property
    def session(self) -> SessionId:
        """Number of the registered session; valid between `start` and `close`."""
        ...

    @property
    def epoch(self) -> int:
        """Generation of the registration; each `rejoin` increases it.

        The store no longer sustains a file that was opened in an older epoch, until the session
        opens the file again.
        """
        ...

    async def start(self) -> None:
        """Connect, register a session and start its heartbeat. Raises Unavailable."""
        ...

    async def close(self) -> None:
        """End the session and release the inodes it sustains. Idempotent."""
        ...

    async def rejoin(self) -> None:
        """Register again after `Fenced`, with a higher epoch and no open files.

        The store never rejoins by itself. The caller first discards uncommitted bytes of the old
        epoch, and reports the loss on the handles open at that time.
        """
        ...

    def watch(self, on_crash: Callable[[bool], None]) -> None:
        """Set the function that the store calls after a crash of the database.

        The store calls it before the database answers again. Versions may have stepped back, so
        cached answers are invalid. The argument is True if the crash undid changes that the store
        had answered to this session and that no durable call had covered. The store still sustains
        the files that the session has open.
        """
        ...

    # -- inodes --

    async def getattr(self, ino: Ino) -> Attr:
        """Return the attributes of an inode, even of a sustained one. Raises NotFound.

        For 10 s after an inode moved to the trash, this method and `open` still answer. The kernel
        looks up a name first and then asks for the inode; in between, the name may be replaced.
        """
        ...

    async def setattr(self, ino: Ino, changes: SetAttr) -> Attr:
        """Apply all changes at once; ctime moves.

        A change of size truncates the file, or extends it with a hole.
        """
        ...

    async def touch(self, atimes: Mapping[Ino, int]) -> None:
        """Move access times (ns) forward and change nothing else; skips inodes that are gone.

        Each inode is a step of its own. No step is durable before the next durable call.
        """
        ...

    async def readlink(self, ino: Ino) -> bytes:
        """Return the target of a symbolic link. Raises InvalidArgument for other inodes."""
        ...

    # -- open files --

    async def open(self, ino: Ino, *, truncate: bool = False) -> FileMap:
        """Register an open handle of this session and return the map of the file.

        The handle sustains the inode: an unlinked file keeps its bytes until the last handle
        closes.
        """
        ...

    async def create_unlinked(self, mode: int, caller: Caller) -> FileMap:
        """Create a regular file without a name; this session sustains it until `release`."""
        ...

    async def release(self, ino: Ino) -> None:
        """Close one handle. After the last handle of an unlinked inode, the store frees it soon."""
        ...

    async def file_map(self, ino: Ino) -> FileMap:
        """Return the current slices and attributes in one snapshot."""
        ...

    # -- bytes --

    async def reserve_slices(self, count: int) -> SliceId:
        """Reserve the ids [result, result + count) for this session; ids are never reused."""
        ...

    async def give_up(self, slices: Mapping[SliceId, int]) -> None:
        """Report ids, with their sizes in bytes, that this session will not commit. Idempotent.

        After the call, an id is either already committed or never will be: no earlier failed call
        of this session can still commit it.
        """
        ...

    async def drop_ranges(self) -> None:
        """Report that the session closes and has committed or given up each id it reserved."""
        ...

    async def commit(self, commit: Commit) -> Attr:
        """Make extents visible; size and mtime move, the version grows.

        Raises QuotaExceeded, Stale, and InvalidArgument for a slice that is garbage, because its
        objects may be gone.
        """
        ...

    async def allocate(self, ino: Ino, start: int, length: int, *, clear: bool, grow: bool) -> Attr:
        """Prepare a range of a file for writes; times move, the version grows.

        With `clear`, the range becomes a hole within the file. Without it, the call raises
        QuotaExceeded if the quota has no room for the range, and reserves nothing. With `grow`, a
        shorter file is extended with a hole to the end of the range. Raises Stale, FileTooBig,
        ReadOnly.
        """
        ...

    async def copy_range(self, source: Ino, start: int, target: Ino, to: int, length: int) -> Attr:
        """Copy a range between two files, or within one; return the attributes of the target.

        The copy shares the slices of the source and uses nothing of the quota. Holes are copied as
        holes. Raises OutOfRange if the source ends before the range does, InvalidArgument for
        ranges of one file that overlap, Stale, FileTooBig, ReadOnly.
        """
        ...

    async def compact(self, stretch: Stretch) -> bool:
        """Replace many refs with one copy. Returns False if the refs have changed since.

        Newer refs that cover old ones, or overlay the copy, do not count as a change. Raises
        InvalidArgument unless the copy is inline, or this session reserved its id in the current
        epoch.
        """
        ...

    # -- the volume --

    async def statfs(self) -> StatFs:
        """Return exact usage and limits.

        Bytes are the sizes of files less their holes; inodes exclude the root.
        """
        ...

    async def sync(self) -> None:
        """Make every earlier answer survive a crash of the database.

        Durable commits and `publish` imply it. Names and attributes need it: fsync of a directory
        or of a clean file, syncfs, and an answer over HTTP.
        """
        ...

    # -- extended attributes --

    async def getxattr(self, ino: Ino, name: bytes) -> bytes:
        """Return the value of an attribute. Raises NoData."""
        ...

    async def setxattr(
        self, ino: Ino, name: bytes, value: bytes, flags: XattrFlags = XattrFlags.NONE
    ) -> None:
        """Set an attribute.

        Raises Exists (with CREATE), NoData (with REPLACE), ArgumentTooBig (above 64 KiB).
        """
        ...

    async def listxattr(self, ino: Ino) -> list[bytes]:
        """Return the names of all attributes, sorted."""
        ...

    async def removexattr(self, ino: Ino, name: bytes) -> None:
        """Remove an attribute. Raises NoData."""
        ...
