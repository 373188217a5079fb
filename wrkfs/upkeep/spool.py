"""A local copy of a volume's rows at one moment, in a temporary file.

Reads of blocks may take long, and the transaction of the database must be short. So `dump` copies
the rows first and ends the transaction.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from wrkfs.errors import Corrupt, WrkfsError
from wrkfs.meta import rules
from wrkfs.types import ROOT_INO, Attr, FileMap, Ino, SliceId, SliceRef

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wrkfs.meta.postgres.snapshot import Snapshot

TABLES = {
    "inode": "ino, mode, nlink, uid, gid, rdev, size, atime, mtime, ctime, version",
    "dentry": "parent, name, ino",
    "symlink": "ino, target",
    "xattr": "ino, name, value",
    "slice": "inode, ord, pos, slice_id, size, off, length, checksums, is_inline",
    "inline": "slice_id, data",
}
"""Tables and their columns."""
INSERT = "INSERT INTO TABLE VALUES (PLACES)"
SELECT = "SELECT COLUMNS FROM TABLE WHERE KEY < SNAPSHOTS"
"""A dump has the files of the drive, and not its snapshots."""
KEYS = {"inode": "ino", "dentry": "ino", "symlink": "ino", "xattr": "ino", "slice": "inode"}
"""Columns with the numbers of inodes."""
INDEXES = {
    "inode": "ino",
    "dentry": "parent, name",
    "symlink": "ino",
    "xattr": "ino, name",
    "slice": "inode, ord",
    "inline": "slice_id",
}
"""Indexes to create after the copy, because the transaction must not wait for them."""
_ATTR = (
    "ino",
    "mode",
    "nlink",
    "uid",
    "gid",
    "rdev",
    "size",
    "atime_ns",
    "mtime_ns",
    "ctime_ns",
    "version",
)
"""Fields of Attr, in the order of the columns."""
_ID_MAX = (1 << 32) - 1
_KINDS = frozenset({0o01, 0o02, 0o04, 0o06, 0o10, 0o12, 0o14})
"""Type bits of `mode` that are valid."""


class Spool:
    """The rows. Use it as a context."""

    def __init__(self) -> None:
        # Without a name, SQLite uses a temporary file and deletes it.
        self._base = sqlite3.connect("")
        self._base.execute("PRAGMA journal_mode = OFF")
        self._base.execute("PRAGMA synchronous = OFF")
        for table, columns in TABLES.items():
            self._base.execute(f"CREATE TABLE {table} ({columns})")

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._base.close()

    async def fill(self, snapshot: Snapshot, progress: Callable[[int, int], None]) -> None:
        """Copy all rows; calls `progress(rows, 0)`. Close the snapshot, then call `index`."""
        count = 0
        for table, columns in TABLES.items():
            places = ", ".join("?" for _ in columns.split(", "))
            statement = INSERT.replace("TABLE", table).replace("PLACES", places)
            query = SELECT.replace("TABLE", table).replace("COLUMNS", columns)
            query = query.replace("KEY", KEYS.get(table, "0"))
            query = query.replace("SNAPSHOTS", str(rules.SNAPSHOTS_INO))
            async for batch in snapshot.batches(query):
                self._base.executemany(statement, map(tuple, batch))
                count += len(batch)
                progress(count, 0)
        self._base.commit()

    def index(self) -> None:
        """Create the indexes for the other methods."""
        for table, columns in INDEXES.items():
            self._base.execute(f"CREATE INDEX {table}_key ON {table} ({columns})")

    @property
    def size(self) -> int:
        """Size of all regular files in bytes, holes included."""
        size: int = self._base.execute(
            "SELECT coalesce(sum(size), 0) FROM inode WHERE mode >> 12 = 8 AND nlink > 0"
        ).fetchone()[0]
        return size

    def attr(self, ino: int) -> Attr:
        """Return the attributes of an inode. Raises Corrupt if it is missing or invalid."""
        row = self._base.execute("SELECT * FROM inode WHERE ino = ?", (ino,)).fetchone()
        if row is None:
            raise Corrupt(f"inode {ino} is missing; run: wrkfs fsck")
        attr = Attr(**dict(zip(_ATTR, row, strict=True)))
        if (
            attr.mode >> 12 not in _KINDS
            or attr.nlink < 0
            or not 0 <= attr.uid <= _ID_MAX
            or not 0 <= attr.gid <= _ID_MAX
            or attr.size < 0
            or attr.rdev < 0
        ):
            raise Corrupt(f"inode {ino} has invalid attributes; run: wrkfs fsck")
        return attr

    def entries(self, parent: Ino) -> list[tuple[bytes, Ino]]:
        """Return the names in a directory, sorted. Raises Corrupt for an invalid name."""
        entries = self._base.execute(
            "SELECT name, ino FROM dentry WHERE parent = ? ORDER BY name", (parent,)
        ).fetchall()
        for name, _ in entries:
            try:
                rules.check_name(name)
            except WrkfsError:
                raise Corrupt(f"directory {parent} has an invalid name; run: wrkfs fsck") from None
        return entries

    def walk(self) -> Iterator[tuple[bytes, Attr]]:
        """Yield path and attributes of each name, parents first.

        Paths have no leading slash; the root has b"". Raises Corrupt if a directory has two names.
        """
        visited: set[int] = set()
        pending: list[tuple[bytes, Ino]] = [(b"", ROOT_INO)]
        while pending:
            path, ino = pending.pop()
            attr = self.attr(ino)
            yield path, attr
            if attr.is_dir:
                if ino in visited:
                    raise Corrupt(f"directory {ino} has two names; run: wrkfs fsck")
                visited.add(ino)
                below = path + b"/" if path else b""
                pending += [(below + name, child) for name, child in reversed(self.entries(ino))]

    def target(self, ino: Ino) -> bytes:
        """Return the target of a symbolic link. Raises Corrupt if it is missing."""
        row = self._base.execute("SELECT target FROM symlink WHERE ino = ?", (ino,)).fetchone()
        if row is None:
            raise Corrupt(f"symbolic link {ino} has no target; run: wrkfs fsck")
        return bytes(row[0])

    def xattrs(self, ino: Ino) -> list[tuple[bytes, bytes]]:
        """Return the extended attributes, sorted by name."""
        return self._base.execute(
            "SELECT name, value FROM xattr WHERE ino = ? ORDER BY name", (ino,)
        ).fetchall()

    def file_map(self, attr: Attr) -> FileMap:
        """Return the attributes and slices of a file."""
        rows = self._base.execute(
            "SELECT s.pos, s.slice_id, s.size, s.off, s.length, s.checksums, "
            "CASE WHEN s.is_inline THEN coalesce(n.data, x'') END "
            "FROM slice s LEFT JOIN inline n ON n.slice_id = s.slice_id "
            "WHERE s.inode = ? ORDER BY s.ord",
            (attr.ino,),
        )
        refs = tuple(
            SliceRef(pos, SliceId(number), size, off, length, sums, inline)
            for pos, number, size, off, length, sums, inline in rows
        )
        return FileMap(attr, refs)
