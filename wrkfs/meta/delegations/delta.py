"""The net effect of changes that a session decided and has not sent, as rows of the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from wrkfs.types import Attr, Extent, Ino, SliceId

if TYPE_CHECKING:
    from collections.abc import Iterable

Record: TypeAlias = "tuple[Any, ...]"
"""One changed row: a letter for its kind, and values. The journal stores records."""

INODE, CUT, PUT, LINK, EXTENT, GONE, EMPTIED = "i", "-", "+", "l", "e", "x", "0"


def inode_record(attr: Attr, *, new: bool = False) -> Record:
    """Return the record of `Delta.put_inode`."""
    return (INODE, new, *_columns(attr))


def put_record(parent: Ino, name: bytes, ino: Ino, cookie: int, *, fresh: bool = False) -> Record:
    """Return the record of `Delta.put_name`."""
    return (PUT, parent, name, ino, cookie, fresh)


def cut_record(parent: Ino, name: bytes) -> Record:
    """Return the record of `Delta.cut_name`."""
    return (CUT, parent, name)


def link_record(ino: Ino, target: bytes) -> Record:
    """Return the record of `Delta.put_link`."""
    return (LINK, ino, target)


def extent_record(ino: Ino, extent: Extent) -> Record:
    """Return the record of `Delta.add_extent`."""
    columns = (extent.pos, extent.slice_id, extent.length, extent.checksums, extent.inline)
    return (EXTENT, ino, *columns)


def emptied_record(ino: Ino) -> Record:
    """Return the record of `Delta.empty`."""
    return (EMPTIED, ino)


def gone_record(ino: Ino, parent: Ino, name: bytes, at_ns: int, before_ns: int | None) -> Record:
    """Return the record of `Delta.remove_inode`."""
    return (GONE, ino, parent, name, at_ns, before_ns)


class Delta:
    """Changed rows since the last batch. Nothing here waits.

    A file that is created and removed within one delta leaves nothing behind.
    """

    def __init__(self) -> None:
        self.weight = 0
        """Number of records, plus one for each KiB of file contents."""
        self.touched: set[Ino] = set()
        """Inodes with changed rows, and the directories that contain them."""
        self.room = (0, 0)
        """Bytes and inodes that the session still needs of its reservation after this batch."""
        self._inodes: dict[Ino, Attr] = {}
        self._new: set[Ino] = set()
        self._names: dict[tuple[Ino, bytes], tuple[Ino, int] | None] = {}
        self._fresh: set[tuple[Ino, bytes]] = set()
        """Names in `_names` that the database does not have."""
        self._moved: set[tuple[Ino, bytes]] = set()
        """Names that were removed and then made: their entries get a new place in the listing."""
        self._links: dict[Ino, bytes] = {}
        self._extents: dict[Ino, list[Extent]] = {}
        self._emptied: set[Ino] = set()
        self._gone: dict[Ino, tuple[Ino, bytes, int, int | None]] = {}
        self._waste: dict[SliceId, int] = {}

    def __bool__(self) -> bool:
        return self.weight > 0

    def is_new(self, ino: Ino) -> bool:
        """Return True if the database has no row of this inode."""
        return ino in self._new

    @property
    def names(self) -> list[bytes]:
        """Changed names, for messages."""
        return [name for _, name in self._names]

    # -- changes --

    def put_inode(self, attr: Attr, *, new: bool = False) -> None:
        """Set the row of an inode; `new` if it has none."""
        self._inodes[attr.ino] = attr
        if new:
            self._new.add(attr.ino)
        self._touch(attr.ino, attr.parent)

    def put_name(
        self, parent: Ino, name: bytes, ino: Ino, cookie: int, *, fresh: bool = False
    ) -> None:
        """Make a name refer to an inode; `fresh` if the name did not exist before this change."""
        key = (parent, name)
        before = self._names.get(key)
        if fresh and key not in self._names:
            self._fresh.add(key)
        elif before is not None:
            cookie = before[1]  # a name that gets another inode keeps its place in the listing
        elif key in self._names:
            self._moved.add(key)
        self._names[key] = (ino, cookie)
        self._touch(parent)

    def cut_name(self, parent: Ino, name: bytes) -> None:
        """Remove a name."""
        key = (parent, name)
        if key in self._fresh:
            self._fresh.discard(key)
            del self._names[key]
        else:
            self._names[key] = None
            self._moved.discard(key)
        self._touch(parent)

    def put_link(self, ino: Ino, target: bytes) -> None:
        """Set the target of a new symbolic link."""
        self._links[ino] = target
        self._touch(ino)

    def add_extent(self, ino: Ino, extent: Extent) -> None:
        """Add bytes to a file; `pos` is their offset in the file."""
        self._extents.setdefault(ino, []).append(extent)
        self._touch(ino)
        self.weight += 0 if extent.inline is None else len(extent.inline) >> 10

    def empty(self, ino: Ino) -> None:
        """Cut a file to no bytes; its new attributes are another record."""
        self._drop_extents(ino)
        if ino not in self._new:
            self._emptied.add(ino)
        self._touch(ino)

    def _drop_extents(self, ino: Ino) -> None:
        for extent in self._extents.pop(ino, ()):
            if extent.inline is None:
                self._waste[extent.slice_id] = extent.length

    def remove_inode(
        self, ino: Ino, parent: Ino, name: bytes, at_ns: int, before_ns: int | None
    ) -> None:
        """End an inode whose last name was removed at `at_ns`.

        `before_ns` is the mtime of the directory before; None if another inode took the name.
        """
        if ino in self._new:
            self._new.discard(ino)
            self._inodes.pop(ino, None)
            self._links.pop(ino, None)
            self._drop_extents(ino)
        else:
            # Its last bytes and attributes stay: the trash or an open file elsewhere shows them.
            self._gone[ino] = (parent, name, at_ns, before_ns)
        self._touch(ino, parent)

    def _touch(self, *inos: Ino) -> None:
        self.touched.update(inos)
        self.weight += 1

    # -- the journal --

    def replay(self, records: Iterable[Record]) -> None:
        """Make the changes of records. Raises ValueError or TypeError for malformed ones."""
        for record in records:
            kind, *values = record
            if kind == INODE:
                new, *columns = values
                self.put_inode(Attr(*columns), new=bool(new))
            elif kind == PUT:
                *entry, fresh = values
                self.put_name(*entry, fresh=bool(fresh))
            elif kind == CUT:
                self.cut_name(*values)
            elif kind == LINK:
                self.put_link(*values)
            elif kind == EXTENT:
                ino, *columns = values
                self.add_extent(ino, Extent(*columns))
            elif kind == EMPTIED:
                self.empty(*values)
            elif kind == GONE:
                self.remove_inode(*values)
            else:
                raise ValueError(f"unknown record {kind!r}")

    # -- the batch --

    def arguments(self) -> tuple[list[object], ...]:
        """Return the arrays of `wrkfs.apply`, from the inodes to the unused slices."""
        attrs = list(self._inodes.values())
        removals = [
            key for key, entry in self._names.items() if entry is None or key in self._moved
        ]
        entries = [(*key, *entry) for key, entry in self._names.items() if entry is not None]
        extents = [(ino, extent) for ino, many in self._extents.items() for extent in many]
        removed_inodes = [(ino, *values) for ino, values in self._gone.items()]
        return (
            [attr.ino for attr in attrs],
            [attr.ino in self._new for attr in attrs],
            [attr.mode for attr in attrs],
            [attr.nlink for attr in attrs],
            [attr.uid for attr in attrs],
            [attr.gid for attr in attrs],
            [attr.rdev for attr in attrs],
            [attr.size for attr in attrs],
            [attr.atime_ns for attr in attrs],
            [attr.mtime_ns for attr in attrs],
            [attr.ctime_ns for attr in attrs],
            [attr.version for attr in attrs],
            [attr.parent for attr in attrs],
            [attr.holes for attr in attrs],
            [parent for parent, _ in removals],
            [name for _, name in removals],
            *_columns_of(entries, 4),
            list(self._links),
            list(self._links.values()),
            list(self._emptied),
            [ino for ino, _ in extents],
            [extent.pos for _, extent in extents],
            [extent.slice_id for _, extent in extents],
            [extent.length for _, extent in extents],
            [b"" if extent.inline is not None else extent.checksums for _, extent in extents],
            [extent.inline for _, extent in extents],
            *_columns_of(removed_inodes, 5),
            list(self._waste),
            list(self._waste.values()),
        )


def _columns(attr: Attr) -> tuple[int, ...]:
    """Return the values of `Attr`, in the order of its fields."""
    return (
        attr.ino,
        attr.mode,
        attr.nlink,
        attr.uid,
        attr.gid,
        attr.rdev,
        attr.size,
        attr.atime_ns,
        attr.mtime_ns,
        attr.ctime_ns,
        attr.version,
        attr.holes,
        attr.parent,
    )


def _columns_of(rows: list[tuple[Any, ...]], count: int) -> list[list[object]]:
    return [[row[number] for row in rows] for number in range(count)]
