"""A local copy of a volume's rows at one moment, in a temporary file that vanishes with it.

Reading blocks takes as long as it takes; the database's transaction must not. So `dump` copies the
rows first and lets the transaction go.
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
SELECT = "SELECT COLUMNS FROM TABLE"
INDEXES = {
    "inode": "ino",
    "dentry": "parent, name",
    "symlink": "ino",
    "xattr": "ino, name",
    "slice": "inode, ord",
    "inline": "slice_id",
}
"""Made when all rows are there: the database is not kept waiting for them."""
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
"""Kinds of inodes that there are."""


class Spool:
    """The rows. Use it as a context."""

    def __init__(self) -> None:
        # No name: a temporary file that SQLite deletes.
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
        """Copies all rows; `progress(rows, 0)`. Call `index` when the snapshot is closed."""
        done = 0
        for table, columns in TABLES.items():
            places = ", ".join("?" for _ in columns.split(", "))
            statement = INSERT.replace("TABLE", table).replace("PLACES", places)
            query = SELECT.replace("TABLE", table).replace("COLUMNS", columns)
            async for batch in snapshot.batches(query):
                self._base.executemany(statement, map(tuple, batch))
                done += len(batch)
                progress(done, 0)
        self._base.commit()

    def index(self) -> None:
        """Makes the rows ready to be looked up."""
        for table, columns in INDEXES.items():
            self._base.execute(f"CREATE INDEX {table}_key ON {table} ({columns})")

    @property
    def size(self) -> int:
        """Bytes of all regular files, holes included."""
        found: int = self._base.execute(
            "SELECT coalesce(sum(size), 0) FROM inode WHERE mode >> 12 = 8 AND nlink > 0"
        ).fetchone()[0]
        return found

    def attr(self, ino: int) -> Attr:
        """Attributes of an inode. Corrupt when it is missing."""
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
            raise Corrupt(f"impossible attributes of inode {ino}; run: wrkfs fsck")
        return attr

    def entries(self, parent: Ino) -> list[tuple[bytes, Ino]]:
        """Names in a directory, sorted. Corrupt for one that cannot be."""
        found = self._base.execute(
            "SELECT name, ino FROM dentry WHERE parent = ? ORDER BY name", (parent,)
        ).fetchall()
        for name, _ in found:
            try:
                rules.check_name(name)
            except WrkfsError:
                raise Corrupt(f"impossible name in inode {parent}; run: wrkfs fsck") from None
        return found

    def walk(self) -> Iterator[tuple[bytes, Attr]]:
        """Path (without a leading slash; b"" for the root) and attributes, parents first.

        Corrupt for a directory that is reached twice.
        """
        seen: set[int] = set()
        ahead: list[tuple[bytes, Ino]] = [(b"", ROOT_INO)]
        while ahead:
            path, ino = ahead.pop()
            attr = self.attr(ino)
            yield path, attr
            if attr.is_dir:
                if ino in seen:
                    raise Corrupt(f"directory {ino} stands in two places; run: wrkfs fsck")
                seen.add(ino)
                below = path + b"/" if path else b""
                ahead += [(below + name, child) for name, child in reversed(self.entries(ino))]

    def target(self, ino: Ino) -> bytes:
        """Target of a symbolic link. Corrupt when it is missing."""
        row = self._base.execute("SELECT target FROM symlink WHERE ino = ?", (ino,)).fetchone()
        if row is None:
            raise Corrupt(f"symbolic link {ino} has no target; run: wrkfs fsck")
        return bytes(row[0])

    def xattrs(self, ino: Ino) -> list[tuple[bytes, bytes]]:
        """Extended attributes, sorted by name."""
        return self._base.execute(
            "SELECT name, value FROM xattr WHERE ino = ? ORDER BY name", (ino,)
        ).fetchall()

    def file_map(self, attr: Attr) -> FileMap:
        """What a file consists of."""
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
