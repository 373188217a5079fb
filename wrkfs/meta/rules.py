"""Rules that every metadata store shares: argument checks, modes, cutting extents. Pure functions.

A check here saves a round trip. The SQL functions and the constraints of the tables repeat every
check that the integrity of the database depends on.
"""

from __future__ import annotations

import re
import stat
from typing import TYPE_CHECKING

from wrkfs.errors import (
    ArgumentTooBig,
    FileTooBig,
    InvalidArgument,
    NameTooLong,
    NotFound,
    NotPermitted,
    NotSupported,
    OutOfRange,
    ReadOnly,
)
from wrkfs.layout import CHECKSUM_UNIT, CHUNK_SIZE, INLINE_MAX, MAX_FILE_SIZE, NAME_MAX, PATH_MAX
from wrkfs.types import ROOT_INO, Ino, RenameFlags, SetAttr, XattrFlags

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wrkfs.types import Commit, Extent

XATTR_VALUE_MAX = 64 * 1024
"""Maximum length of the value of an extended attribute in bytes (Linux)."""
NODE_KINDS = (stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFBLK, stat.S_IFCHR)
"""Types that `mknod` creates. The kernel decides who may create device nodes, and opens none of
them."""
EXTENTS_MAX = 4096
"""Maximum number of extents in one commit."""
SNAPSHOTS_INO = Ino(1 << 52)
"""Inode of the directory of all snapshots. It and every larger number belong to snapshots, which
cannot change. A program that stores inode numbers as floating point still tells them apart."""
SNAPSHOTS_NAME = b".snapshots"
"""Name of that directory in the root. Listings of the root do not have it."""
SNAPSHOTS_MAX = 1000
"""Maximum number of snapshots of a volume."""
TREE_MAX = 250_000
"""Maximum number of names in one clone or snapshot. Changes of the volume wait meanwhile."""
_SNAPSHOT_NAME = re.compile(rb"[A-Za-z0-9_][A-Za-z0-9_.:+@-]{0,99}", re.ASCII)
_ID_MAX = (1 << 32) - 1


def is_read_only(ino: Ino) -> bool:
    """Return True for an inode of a snapshot."""
    return ino >= SNAPSHOTS_INO


def check_writable(ino: Ino) -> None:
    """Reject a change of an inode of a snapshot. Raises ReadOnly."""
    if is_read_only(ino):
        raise ReadOnly("snapshots cannot change")


def is_unlisted(parent: Ino, name: bytes) -> bool:
    """Return True for a name that listings of its directory never have."""
    return name == SNAPSHOTS_NAME and parent == ROOT_INO


def is_snapshot_name(name: bytes) -> bool:
    """Return True for a valid name of a snapshot."""
    return _SNAPSHOT_NAME.fullmatch(name) is not None


def check_snapshot_name(name: bytes) -> None:
    """Reject an invalid name of a snapshot. Raises InvalidArgument."""
    if not is_snapshot_name(name):
        raise InvalidArgument(
            "a snapshot's name has 1 to 100 letters, digits and characters of `_.:+@-`, "
            "and begins with a letter, a digit or `_`"
        )


def check_name(name: bytes) -> None:
    """Reject an invalid entry name: empty, `.`, `..`, with `/` or NUL, or too long.

    Raises NotFound, NameTooLong, InvalidArgument.
    """
    if not name:
        raise NotFound("empty name")
    if len(name) > NAME_MAX:
        raise NameTooLong
    if name in (b".", b"..") or b"/" in name or b"\0" in name:
        raise InvalidArgument("this name cannot be an entry of a directory")


def check_target(target: bytes) -> None:
    """Reject an invalid target of a symbolic link.

    Raises NotFound, NameTooLong, InvalidArgument.
    """
    if not target:
        raise NotFound("empty target")
    if len(target) >= PATH_MAX:
        raise NameTooLong
    if b"\0" in target:
        raise InvalidArgument("the target of the link contains a NUL byte")


def node_mode(mode: int) -> int:
    """Return the mode of a node that `mknod` may create.

    Raises NotPermitted for directories and links.
    """
    kind = stat.S_IFMT(mode) or stat.S_IFREG
    if kind not in NODE_KINDS:
        raise NotPermitted("mknod creates only regular files, fifos, sockets and device nodes")
    return kind | stat.S_IMODE(mode)


def node_device(mode: int, rdev: int) -> int:
    """Return the device number to store: 0 unless the node is a device node."""
    if not (stat.S_ISBLK(mode) or stat.S_ISCHR(mode)):
        return 0
    if not 0 <= rdev <= _ID_MAX:
        raise InvalidArgument("device number out of range")
    return rdev


def without_set_ids(mode: int) -> int:
    """Return the mode after a change for which Linux clears the set-id bits of a file."""
    cleared = stat.S_ISUID | (stat.S_ISGID if mode & stat.S_IXGRP else 0)
    return mode & ~cleared


def check_setattr(changes: SetAttr) -> None:
    """Reject values out of range. Raises InvalidArgument, FileTooBig."""
    for owner in (changes.uid, changes.gid):
        if owner is not None and not 0 <= owner <= _ID_MAX:
            raise InvalidArgument("owner or group out of range")
    if changes.size is not None:
        if changes.size < 0:
            raise InvalidArgument("negative size")
        if changes.size > MAX_FILE_SIZE:
            raise FileTooBig


def check_xattr(name: bytes, value: bytes = b"") -> None:
    """Reject invalid names (OutOfRange) and values that are too long (ArgumentTooBig)."""
    if not 0 < len(name) <= NAME_MAX or b"\0" in name:
        raise OutOfRange("the name of the extended attribute is empty, too long, or contains NUL")
    if len(value) > XATTR_VALUE_MAX:
        raise ArgumentTooBig


def checksums_length(size: int) -> int:
    """Return the length in bytes of the checksums of a slice of `size` bytes."""
    return 4 * -(-size // CHECKSUM_UNIT)


def check_commit(commit: Commit) -> None:
    """Reject extents that do not describe a slice. Raises InvalidArgument, FileTooBig."""
    if len(commit.extents) > EXTENTS_MAX:
        raise InvalidArgument("too many extents in one commit")
    for extent in commit.extents:
        if extent.pos < 0 or extent.length <= 0 or extent.slice_id <= 0:
            raise InvalidArgument("an extent has an invalid position, length or slice id")
        if extent.pos + extent.length > MAX_FILE_SIZE:
            raise FileTooBig
        if extent.inline is None:
            if len(extent.checksums) != checksums_length(extent.length):
                raise InvalidArgument("the checksums do not match the length of the extent")
        elif len(extent.inline) != extent.length or not extent.length <= INLINE_MAX:
            raise InvalidArgument("the inline bytes do not match the length of the extent")
    if len({extent.slice_id for extent in commit.extents}) != len(commit.extents):
        raise InvalidArgument("the commit contains a slice id twice")


def check_range(start: int, length: int) -> None:
    """Reject a range that no file can have. Raises InvalidArgument, FileTooBig."""
    if start < 0 or length <= 0:
        raise InvalidArgument("the range has no bytes, or begins before the file")
    if start + length > MAX_FILE_SIZE:
        raise FileTooBig


def check_copy(source: Ino, start: int, target: Ino, to: int, length: int) -> None:
    """Reject a copy that cannot be made. Raises InvalidArgument, FileTooBig."""
    check_range(start, length)
    check_range(to, length)
    if source == target and abs(start - to) < length:
        raise InvalidArgument("the source and the target of the copy overlap")


def pieces(extent: Extent, base: int) -> Iterator[tuple[int, int, int]]:
    """Yield (file offset, offset in the slice, length) of an extent, cut at chunk boundaries.

    `base` is added to the offset of the extent; an appending commit passes the end of the file.
    """
    pos, off, remaining = base + extent.pos, 0, extent.length
    while remaining:
        length = min(remaining, CHUNK_SIZE - pos % CHUNK_SIZE)
        yield pos, off, length
        pos, off, remaining = pos + length, off + length, remaining - length


def check_rename(flags: RenameFlags) -> None:
    """Reject unknown flags and combinations of flags. Raises InvalidArgument."""
    if flags not in (RenameFlags.NONE, RenameFlags.NOREPLACE, RenameFlags.EXCHANGE):
        raise InvalidArgument("invalid rename flags")


def check_xattr_flags(flags: XattrFlags) -> None:
    """Reject unknown flags and combinations of flags. Raises InvalidArgument."""
    if flags not in (XattrFlags.NONE, XattrFlags.CREATE, XattrFlags.REPLACE):
        raise InvalidArgument("invalid setxattr flags")


def holes(places: Iterable[tuple[int, int]], size: int) -> int:
    """Return how many bytes of a file of `size` bytes no (position, length) covers."""
    at, empty = 0, 0
    for pos, length in sorted(places):
        empty += max(0, pos - at)
        at = max(at, pos + length)
    return empty + max(0, size - at)


STORED_XATTRS = (b"user.", b"trusted.")
"""Namespaces of extended attributes that the drive stores."""


def check_namespace(name: bytes) -> None:
    """Reject extended attributes that the drive does not store.

    Raises NotSupported, InvalidArgument.
    """
    if name in STORED_XATTRS:
        raise InvalidArgument("the extended attribute has no name after its namespace")
    if not name.startswith(STORED_XATTRS):
        raise NotSupported(f"the drive does not store the extended attribute {name!r}")
