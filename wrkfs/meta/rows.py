"""Rows of the database as values of the drive, believed only after a look.

The volume's own role can write any row. What is impossible becomes `Corrupt`, so that nothing
behind this file meets a negative size or a name with a slash.
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
    """Attributes from a `wrkfs.reply`."""
    return _attr((*row[2:13], row[14], row[13]))


def entry(row: asyncpg.Record) -> Dentry:
    """One entry from a `wrkfs.entry_reply`."""
    cookie, name = row[1], row[2]
    if not 0 < len(name) <= NAME_MAX or b"/" in name or b"\0" in name or name in (b".", b".."):
        raise Corrupt("name of an entry")
    if cookie <= 0:
        raise Corrupt("cookie of an entry")
    return Dentry(cookie, name, _attr((*row[3:14], row[15], row[14])))


def file_map(row: asyncpg.Record) -> FileMap:
    """Attributes and refs from a `wrkfs.map_reply`."""
    found = attr(row)
    if row[15] is None:
        return FileMap(found, ())
    refs = tuple(map(SliceRef, *row[15:22]))
    for ref in refs:
        _check_ref(ref, found.size)
    return FileMap(found, refs)


def _attr(values: tuple[int, ...]) -> Attr:
    found = Attr(*values)  # type: ignore[arg-type]  # the columns are in the order of the fields
    if (
        found.mode >> 12 not in _KINDS
        or found.size < 0
        or found.nlink < 0
        or not 0 <= found.uid <= _ID_MAX
        or not 0 <= found.gid <= _ID_MAX
        or not 0 <= found.rdev <= _ID_MAX
        or found.ino <= 0
        or found.parent < 0
    ):
        raise Corrupt("attributes of an inode")
    # Only a count for `du`: a wrong one is no reason to refuse a whole directory.
    if not 0 <= found.holes <= found.size:
        return replace(found, holes=min(max(found.holes, 0), found.size))
    return found


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
