"""Converts rows of the database into values of the drive, and validates them.

The role of a volume can write any row. An impossible value raises `Corrupt`, so no other module
meets a negative size or a name with a slash.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wrkfs.errors import Corrupt
from wrkfs.layout import NAME_MAX
from wrkfs.meta.rules import checksums_length
from wrkfs.types import Attr, Dentry, FileMap, SliceRef

if TYPE_CHECKING:
    import asyncpg

_ID_MAX = (1 << 32) - 1
_KINDS = frozenset({0o01, 0o02, 0o04, 0o06, 0o10, 0o12, 0o14})
"""Fifo, character device, directory, block device, regular file, symbolic link, socket."""


def attr(row: asyncpg.Record) -> Attr:
    """Return the attributes in a `wrkfs.reply`."""
    return _attr((*row[2:13], row[14], row[13]))


def entry(row: asyncpg.Record) -> Dentry:
    """Return the entry in a `wrkfs.entry_reply`."""
    return named(row[1], row[2], _attr((*row[3:14], row[15], row[14])))


def named(cookie: int, name: bytes, attributes: Attr) -> Dentry:
    """Return the entry with these values. Raises Corrupt for impossible ones."""
    if not 0 < len(name) <= NAME_MAX or b"/" in name or b"\0" in name or name in (b".", b".."):
        raise Corrupt("name of an entry")
    if cookie <= 0:
        raise Corrupt("cookie of an entry")
    return Dentry(cookie, name, attributes)


def file_map(row: asyncpg.Record) -> FileMap:
    """Return the attributes and refs in a `wrkfs.map_reply`."""
    attributes = attr(row)
    if row[16] is None:
        return FileMap(attributes, ())
    refs = tuple(map(SliceRef, *row[16:23]))
    for ref in refs:
        _check_ref(ref, attributes.size)
    return FileMap(attributes, refs)


def _attr(values: tuple[int, ...]) -> Attr:
    attributes = Attr(*values)  # type: ignore[arg-type]  # the columns are in the order of the fields
    if (
        attributes.mode >> 12 not in _KINDS
        or attributes.size < 0
        or attributes.nlink < 0
        or not 0 <= attributes.uid <= _ID_MAX
        or not 0 <= attributes.gid <= _ID_MAX
        or not 0 <= attributes.rdev <= _ID_MAX
        or attributes.ino <= 0
        or attributes.parent < 0
    ):
        raise Corrupt("attributes of an inode")
    # This number only matters to `du`. A wrong one must not make a whole directory unreadable.
    if not 0 <= attributes.holes <= attributes.size:
        return replace(attributes, holes=min(max(attributes.holes, 0), attributes.size))
    return attributes


def _check_ref(ref: SliceRef, file_size: int) -> None:
    if (
        ref.pos < 0
        or ref.off < 0
        or ref.length <= 0
        or ref.slice_id <= 0
        or ref.pos + ref.length > file_size
        or ref.off + ref.length > ref.size
    ):
        raise Corrupt("slice of a file")
    if ref.inline is None:
        if len(ref.checksums) != checksums_length(ref.size):
            raise Corrupt("checksums of a slice")
    elif len(ref.inline) != ref.size:
        raise Corrupt("bytes of a slice")
