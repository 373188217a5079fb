"""Value types of the drive: what the metadata store, the data path and `Filesystem` exchange.

Sizes and offsets are bytes, times are nanoseconds since the epoch, names and symlink targets are
raw bytes (Linux names have no encoding).
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from enum import IntFlag
from typing import TYPE_CHECKING, NewType, TypeAlias

if TYPE_CHECKING:
    from datetime import datetime

Ino = NewType("Ino", int)
SliceId = NewType("SliceId", int)
SessionId = NewType("SessionId", int)

BytesLike: TypeAlias = bytes | bytearray | memoryview

ROOT_INO = Ino(1)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks for a change: owner of what is created. Permission checks are the kernel's work."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Attr:
    """Attributes of an inode as `stat` shows them.

    `mode` holds type and permission bits. `version` grows with each change of the data (commit,
    truncate): equal version means equal bytes. `holes` counts the bytes of a file that were never
    written: they take no room. `parent`: the directory above a directory, or of the only name of
    anything else; 0 where that is not known.
    """

    ino: Ino
    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    size: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    version: int
    holes: int = 0
    parent: Ino = field(default=Ino(0), compare=False)

    @property
    def held(self) -> int:
        """Bytes that a regular file takes of the quota; 0 for all else."""
        return self.size - self.holes if stat.S_ISREG(self.mode) else 0

    @property
    def is_dir(self) -> bool:
        """True for a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        """True for a regular file."""
        return stat.S_ISREG(self.mode)

    @property
    def is_symlink(self) -> bool:
        """True for a symbolic link."""
        return stat.S_ISLNK(self.mode)


@dataclass(frozen=True, slots=True)
class Dentry:
    """One directory entry. `cookie` is > 0, stable while the entry lives, ordered in `readdir`."""

    cookie: int
    name: bytes
    attr: Attr


@dataclass(frozen=True, slots=True)
class Moved:
    """What a rename did to its directories."""

    at_ns: int
    """Their new mtime and ctime."""
    cookie: int
    """Of the new name; 0: that of the name which it replaced."""


@dataclass(frozen=True, slots=True)
class SetAttr:
    """Changes for `setattr`; None leaves a field as it is. `*_now` takes the database's clock."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    size: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None
    atime_now: bool = False
    mtime_now: bool = False


@dataclass(frozen=True, slots=True)
class SliceRef:
    """Part of a slice that is visible in a file, oldest first in a `FileMap`.

    The bytes `[off, off + length)` of slice `slice_id` (which is `size` bytes long in all) stand at
    file offset `pos`. `inline` holds the whole slice's bytes when it lives in PostgreSQL instead of
    the object store. `checksums` is one big-endian crc32c for each `CHECKSUM_UNIT` of the slice
    (units restart at every block); empty for inline slices.
    """

    pos: int
    slice_id: SliceId
    size: int
    off: int
    length: int
    checksums: bytes
    inline: bytes | None


@dataclass(frozen=True, slots=True)
class FileMap:
    """What a file consists of: attributes and slices, read in one snapshot."""

    attr: Attr
    refs: tuple[SliceRef, ...]


@dataclass(frozen=True, slots=True)
class Extent:
    """One contiguous write that a `Commit` makes visible.

    `pos` is the file offset; for an appending commit it is relative to the end of file that the
    database finds. `inline` is set iff the bytes travel in the commit itself.
    """

    pos: int
    slice_id: SliceId
    length: int
    checksums: bytes
    inline: bytes | None


@dataclass(frozen=True, slots=True)
class Commit:
    """Makes extents visible, in order, in one transaction.

    `durable` asks for a commit that survives a PostgreSQL crash (close, fsync, HTTP); otherwise the
    bytes only become visible (V2). `mtime_ns` None takes the database's clock.
    """

    ino: Ino
    extents: tuple[Extent, ...]
    append: bool = False
    durable: bool = True
    mtime_ns: int | None = None


@dataclass(frozen=True, slots=True)
class StatFs:
    """Use and limits of a volume. Limits are None when there is no quota."""

    bytes_used: int
    bytes_limit: int | None
    inodes_used: int
    inodes_limit: int | None


class RenameFlags(IntFlag):
    """Flags of renameat2(2), with the kernel's numbers."""

    NONE = 0
    NOREPLACE = 1
    EXCHANGE = 2


class XattrFlags(IntFlag):
    """Flags of setxattr(2), with the kernel's numbers."""

    NONE = 0
    CREATE = 1
    REPLACE = 2


Spot: TypeAlias = tuple[Ino, bytes]
"""Where a name stands, or stood: its directory, and the name."""


@dataclass(frozen=True, slots=True)
class TrashEntry:
    """Something removed that can be restored: the last name of an inode, or an earlier one.

    `parent` is the directory it was removed from, which may be in the trash itself or gone.
    `linked`: the inode had other names when this one was removed; `nlink` counts those it has now.
    `dir_mtime_ns` is the directory's mtime before the removal. None: not known, or another inode
    took the name.
    """

    ino: Ino
    parent: Ino
    name: bytes
    deleted_at: datetime
    mode: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    nlink: int = 0
    dir_mtime_ns: int | None = None
    linked: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where a directory is (`alive`), or was before it went to the trash."""

    parent: Ino
    name: bytes
    alive: bool


@dataclass(frozen=True, slots=True)
class Stretch:
    """A copy of what a stretch of a file shows, to take the place of many small refs.

    It lies in one chunk and has no holes. `refs`: all that overlapped it when it was copied;
    `hidden`: slices whose refs in the chunk showed nothing then.
    """

    ino: Ino
    extent: Extent
    refs: tuple[SliceRef, ...]
    hidden: tuple[SliceId, ...]
