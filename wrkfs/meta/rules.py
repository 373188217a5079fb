"""Rules that every metadata store applies alike: argument checks, modes, cutting extents. Pure.

What is checked here costs no round trip; the SQL functions and the tables' constraints check again
what the database's own integrity depends on.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from wrkfs.errors import (
    ArgumentTooBig,
    FileTooBig,
    InvalidArgument,
    IsDirectory,
    NameTooLong,
    NotFound,
    NotPermitted,
    NotSupported,
    OutOfRange,
)
from wrkfs.layout import CHECKSUM_UNIT, CHUNK_SIZE, INLINE_MAX, MAX_FILE_SIZE, NAME_MAX, PATH_MAX
from wrkfs.types import RenameFlags, SetAttr, XattrFlags

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wrkfs.types import Attr, Commit, Extent

XATTR_VALUE_MAX = 64 * 1024
"""Longest value of an extended attribute, bytes (Linux)."""
XATTR_LIST_MAX = 64 * 1024
"""Longest list of names of extended attributes of one inode, bytes (Linux)."""
NODE_KINDS = (stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFBLK, stat.S_IFCHR)
"""What `mknod` makes. Who may make device nodes, and that none is opened, is the kernel's work."""
TRASH_MIN_AGE_NS = 60 * 10**9
"""Empty files and symbolic links that are younger are not worth keeping."""
EXTENTS_MAX = 4096
"""Most extents in one commit."""
_ID_MAX = (1 << 32) - 1


def check_name(name: bytes) -> None:
    """Refuses what cannot be the name of an entry: empty, `.`, `..`, with `/` or NUL, too long."""
    if not name:
        raise NotFound("empty name")
    if len(name) > NAME_MAX:
        raise NameTooLong
    if name in (b".", b"..") or b"/" in name or b"\0" in name:
        raise InvalidArgument("not a name of an entry")


def check_target(target: bytes) -> None:
    """Refuses what cannot be the target of a symbolic link."""
    if not target:
        raise NotFound("empty target")
    if len(target) >= PATH_MAX:
        raise NameTooLong
    if b"\0" in target:
        raise InvalidArgument("NUL in a target")


def node_mode(mode: int) -> int:
    """The mode of a node that `mknod` may make; NotPermitted for directories and links."""
    kind = stat.S_IFMT(mode) or stat.S_IFREG
    if kind not in NODE_KINDS:
        raise NotPermitted("only regular files, fifos, sockets and device nodes")
    return kind | stat.S_IMODE(mode)


def node_device(mode: int, rdev: int) -> int:
    """The device number that a node keeps: 0 unless it is a device node."""
    if not (stat.S_ISBLK(mode) or stat.S_ISCHR(mode)):
        return 0
    if not 0 <= rdev <= _ID_MAX:
        raise InvalidArgument("device number")
    return rdev


def without_set_ids(mode: int) -> int:
    """Mode after a change by which Linux takes the set-id bits away from a file."""
    cleared = stat.S_ISUID | (stat.S_ISGID if mode & stat.S_IXGRP else 0)
    return mode & ~cleared


def check_resizable(mode: int) -> None:
    """Only regular files have a size that can be set."""
    if stat.S_ISDIR(mode):
        raise IsDirectory
    if not stat.S_ISREG(mode):
        raise InvalidArgument("not a regular file")


def check_setattr(changes: SetAttr) -> None:
    """Refuses negative and overlarge values."""
    for owner in (changes.uid, changes.gid):
        if owner is not None and not 0 <= owner <= _ID_MAX:
            raise InvalidArgument("owner or group out of range")
    if changes.size is not None:
        if changes.size < 0:
            raise InvalidArgument("negative size")
        if changes.size > MAX_FILE_SIZE:
            raise FileTooBig


def check_xattr(name: bytes, value: bytes = b"") -> None:
    """Refuses impossible names (OutOfRange) and overlong values (ArgumentTooBig)."""
    if not 0 < len(name) <= NAME_MAX or b"\0" in name:
        raise OutOfRange("name of an extended attribute")
    if len(value) > XATTR_VALUE_MAX:
        raise ArgumentTooBig


def checksums_length(size: int) -> int:
    """Bytes of the checksums of a slice of `size` bytes in the object store."""
    return 4 * -(-size // CHECKSUM_UNIT)


def check_commit(commit: Commit) -> None:
    """Refuses extents that do not describe a slice. FileTooBig beyond the largest file."""
    if len(commit.extents) > EXTENTS_MAX:
        raise InvalidArgument("too many extents in one commit")
    for extent in commit.extents:
        if extent.pos < 0 or extent.length <= 0 or extent.slice_id <= 0:
            raise InvalidArgument("not an extent")
        if extent.pos + extent.length > MAX_FILE_SIZE:
            raise FileTooBig
        if extent.inline is None:
            if len(extent.checksums) != checksums_length(extent.length):
                raise InvalidArgument("checksums do not fit the length")
        elif len(extent.inline) != extent.length or not extent.length <= INLINE_MAX:
            raise InvalidArgument("inline bytes do not fit the length")
    if len({extent.slice_id for extent in commit.extents}) != len(commit.extents):
        raise InvalidArgument("a slice id stands twice in one commit")


def pieces(extent: Extent, base: int) -> Iterator[tuple[int, int, int]]:
    """(file offset, offset in the slice, length) of an extent, cut at chunk boundaries.

    `base` is added to the extent's offset (the end of file for an appending commit).
    """
    pos, off, left = base + extent.pos, 0, extent.length
    while left:
        length = min(left, CHUNK_SIZE - pos % CHUNK_SIZE)
        yield pos, off, length
        pos, off, left = pos + length, off + length, left - length


def check_rename(flags: RenameFlags) -> None:
    """Refuses unknown flags and those that contradict each other."""
    if flags not in (RenameFlags.NONE, RenameFlags.NOREPLACE, RenameFlags.EXCHANGE):
        raise InvalidArgument("flags of rename")


def check_xattr_flags(flags: XattrFlags) -> None:
    """Refuses unknown flags and those that contradict each other."""
    if flags not in (XattrFlags.NONE, XattrFlags.CREATE, XattrFlags.REPLACE):
        raise InvalidArgument("flags of setxattr")


def holes(places: Iterable[tuple[int, int]], size: int) -> int:
    """Bytes of a file of `size` bytes that no (position, length) covers."""
    at, empty = 0, 0
    for pos, length in sorted(places):
        empty += max(0, pos - at)
        at = max(at, pos + length)
    return empty + max(0, size - at)


def is_kept(attr: Attr, now_ns: int) -> bool:
    """Whether the trash keeps a non-directory: not if empty and just changed (a lock file)."""
    return (attr.is_file and attr.size > 0) or (
        (attr.is_file or attr.is_symlink) and attr.ctime_ns < now_ns - TRASH_MIN_AGE_NS
    )


STORED_XATTRS = (b"user.", b"trusted.")
"""Namespaces of extended attributes that the drive keeps."""


def check_namespace(name: bytes) -> None:
    """Refuses extended attributes that are not kept: NotSupported, InvalidArgument."""
    if name in STORED_XATTRS:
        raise InvalidArgument("an extended attribute without a name")
    if not name.startswith(STORED_XATTRS):
        raise NotSupported(f"extended attribute {name!r}")
