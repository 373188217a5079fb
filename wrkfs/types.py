"""Value types that the metadata store, the data path and `Filesystem` exchange.

Sizes and offsets are in bytes, times in nanoseconds since the Unix epoch. Names and symlink targets
are raw bytes, because Linux names have no encoding.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
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
    """The user that makes a change and owns a new inode. The kernel checks permissions."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Attr:
    """Attributes of an inode, as `stat` returns them.

    `mode` contains type and permission bits. `version` grows with each change of the data (commit,
    truncate): the same version means the same bytes. `holes` is the number of bytes of a file that
    were never written and take no space. `parent` is the parent of a directory. For other inodes it
    is the directory of their only name. It is 0 if unknown.
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
    """One directory entry. `cookie` is > 0 and does not change; `readdir` sorts by it."""

    cookie: int
    name: bytes
    attr: Attr


@dataclass(frozen=True, slots=True)
class Moved:
    """The effect of a rename on its directories."""

    at_ns: int
    """The new mtime and ctime of the directories."""
    cookie: int
    """Cookie of the new name; 0 if it has the cookie of the name that it replaced."""


@dataclass(frozen=True, slots=True)
class SetAttr:
    """Changes for `setattr`. None leaves a field unchanged. `*_now` uses the database's clock."""

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
    """A part of a slice that is visible in a file. A `FileMap` has the oldest part first.

    The bytes `[off, off + length)` of slice `slice_id` are at file offset `pos`. `size` is the
    length of the whole slice. `inline` contains the whole slice if PostgreSQL stores it, otherwise
    None. `checksums` has one big-endian crc32c for each `CHECKSUM_UNIT` of the slice. Units restart
    at every block. It is empty for inline slices.
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
    """Attributes and slices of a file, read in one snapshot."""

    attr: Attr
    refs: tuple[SliceRef, ...]


@dataclass(frozen=True, slots=True)
class Extent:
    """One contiguous write that a `Commit` makes visible.

    `pos` is the file offset; in an appending commit it is relative to the end of the file in the
    database. `inline` contains the bytes if they are part of the commit, otherwise None.
    """

    pos: int
    slice_id: SliceId
    length: int
    checksums: bytes
    inline: bytes | None


@dataclass(frozen=True, slots=True)
class Commit:
    """A transaction that makes extents visible, in order.

    A `durable` commit survives a crash of PostgreSQL (close, fsync, HTTP). Otherwise the bytes only
    become visible (promise V2). With `mtime_ns` None, the database's clock sets the time.
    """

    ino: Ino
    extents: tuple[Extent, ...]
    append: bool = False
    durable: bool = True
    mtime_ns: int | None = None


@dataclass(frozen=True, slots=True)
class StatFs:
    """Usage and limits of a volume. Limits are None if there is no quota."""

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
"""A directory, and a name that is or was in it."""


@dataclass(frozen=True, slots=True)
class TrashEntry:
    """A removed name that can be restored: the last name of an inode, or an earlier one.

    `parent` is the directory that contained the name. It may itself be in the trash, or deleted.
    `linked` is True if the inode had other names at the removal. `nlink` is the number of its
    current names. `dir_mtime_ns` is the directory's mtime before the removal. It is None if it is
    unknown or another inode took the name.
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

    @property
    def position(self) -> TrashPosition:
        """The place of this entry in the order of removals."""
        return TrashPosition(self.deleted_at, self.ino, self.parent, self.name)


@dataclass(frozen=True, slots=True)
class TrashPosition:
    """A place in the order in which names were removed. It stays valid when its entry is gone."""

    deleted_at: datetime
    ino: Ino
    parent: Ino
    name: bytes


@dataclass(frozen=True, slots=True)
class Place:
    """Parent and name of a directory: the current ones if `alive`, else those before removal."""

    parent: Ino
    name: bytes
    alive: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A read-only copy of a tree, below `/.snapshots/NAME`.

    `ino` is the top of the copy. `path` is the path of the source at that time, without a leading
    slash. `inodes` and `bytes` are the size of the copy; holes do not count.
    """

    name: bytes
    ino: Ino
    path: bytes
    created_at: datetime
    inodes: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """A copy of a range of a file, which replaces many small refs.

    The range is in one chunk and has no holes. `refs` are all refs that overlapped it at the time
    of the copy. `hidden` are slices whose refs in the chunk were then completely covered.
    """

    ino: Ino
    extent: Extent
    refs: tuple[SliceRef, ...]
    hidden: tuple[SliceId, ...]


LOCK_END = (1 << 63) - 1
"""Last offset of a lock that covers everything up to the end of the file."""


class LockSpace(IntEnum):
    """The two kinds of advisory locks. A lock of one kind never conflicts with one of the other."""

    RANGES = 0
    """Locks of fcntl(2) on ranges of bytes. Their owner is a process, or an open file (OFD)."""
    WHOLE_FILE = 1
    """Locks of flock(2). Their owner is an open file."""


class LockMode(IntEnum):
    """What a request does with its range."""

    UNLOCK = 0
    SHARED = 1
    EXCLUSIVE = 2


@dataclass(frozen=True, slots=True)
class LockOwner:
    """One owner of locks in one session: the kernel's number of a process or of an open file."""

    space: LockSpace
    number: int


@dataclass(frozen=True, slots=True)
class LockRequest:
    """A request for the bytes `first` to `last` (inclusive) of a file, by one owner.

    `pid` is the process that GETLK reports to others. It means something on the owner's host only.
    """

    ino: Ino
    owner: LockOwner
    mode: LockMode
    first: int = 0
    last: int = LOCK_END
    pid: int = 0


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A lock that an owner of this session holds on the bytes `first` to `last` (inclusive)."""

    owner: LockOwner
    mode: LockMode
    first: int
    last: int
    pid: int = 0


@dataclass(frozen=True, slots=True)
class LockWait:
    """How a request waits: `ticket` numbers the wait within its session.

    `is_process` is True if the owner is a process, whose waits can form a deadlock. Waits of open
    files cannot: another thread may release the lock.
    """

    ticket: int
    is_process: bool


@dataclass(frozen=True, slots=True)
class LockAnswer:
    """The answer to a lock request.

    `granted` is False if another owner holds a conflicting lock. `delegated` is True if the session
    now decides alone about the locks of the file. `version` is the version of the file's bytes.
    """

    granted: bool
    delegated: bool
    version: int


@dataclass(frozen=True, slots=True)
class ListedLock:
    """A lock of any session on a file, or a request that `waits` for one.

    `mode` is None if `session` decides alone about the locks of the file.
    """

    ino: Ino
    space: LockSpace
    mode: LockMode | None
    first: int
    last: int
    pid: int
    session: SessionId
    waits: bool


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of one session. Names that end in `_total` only grow.

    `leases` is the number of directories that the session caches under a lease. `unsent_changes`
    have been answered and are only in the journal. `flushes_total` counts batches of such changes
    that the database has applied.
    """

    leases: int
    recalls_total: int
    unsent_changes: int
    flushes_total: int
    queued_uploads: int
    running_uploads: int
    cache_hits_total: int
    cache_misses_total: int
    cache_disk_hits_total: int
    metadata_calls_total: int
