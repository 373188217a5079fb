"""The state that several `MemoryMeta` share: inodes, entries, slices, open handles, use.

Plain synchronous code; `memory.MemoryMeta` puts the operations together from these parts.
"""

from __future__ import annotations

import stat
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tests.doubles.meta_locks import LockTable
from wrkfs.errors import (
    FileTooBig,
    InvalidArgument,
    IsDirectory,
    NotDirectory,
    NotFound,
    QuotaExceeded,
)
from wrkfs.layout import CHUNK_SIZE, INLINE_MAX, MAX_FILE_SIZE
from wrkfs.meta import rules
from wrkfs.types import ROOT_INO, Attr, FileMap, Ino, SessionId, SliceId, SliceRef

if TYPE_CHECKING:
    from collections.abc import Callable

    from wrkfs.types import Commit, Extent, Snapshot

LINK_MAX = 65000
"""Maximum number of names of one file (EMLINK above)."""
JUST_GONE = timedelta(seconds=10)
"""So long after its last name was taken a file in the trash can still be opened."""


def used_bytes(attr: Attr) -> int:
    """The number of bytes that a regular file uses of the quota; 0 for other inodes."""
    return attr.size - attr.holes if stat.S_ISREG(attr.mode) else 0


def check_resizable(mode: int) -> None:
    """Reject a change of size unless the file is regular. Raises IsDirectory, InvalidArgument."""
    if stat.S_ISDIR(mode):
        raise IsDirectory
    if not stat.S_ISREG(mode):
        raise InvalidArgument("not a regular file")


class BorrowedRef(SliceRef):
    """A ref that a copy of a range shares with another file and does not count."""

    __slots__ = ()


@dataclass(slots=True)
class Entry:
    """One name in a directory."""

    ino: Ino
    cookie: int


@dataclass(slots=True)
class Node:
    """One inode with everything that hangs on it.

    `refs` are oldest first; `parent` means something for directories only.
    """

    attr: Attr
    parent: Ino = ROOT_INO
    target: bytes = b""
    entries: dict[bytes, Entry] = field(default_factory=dict)
    refs: list[SliceRef] = field(default_factory=list)
    xattrs: dict[bytes, bytes] = field(default_factory=dict)
    borrowed: set[SliceId] = field(default_factory=set)
    """Slices that the clone shares and does not count."""

    @property
    def use(self) -> int:
        """The number of bytes that the inode counts."""
        if not any(self.borrows(ref) for ref in self.refs):
            return used_bytes(self.attr)
        own = [(ref.pos, ref.length) for ref in self.refs if not self.borrows(ref)]
        return self.attr.size - rules.holes(own, self.attr.size)

    def borrows(self, ref: SliceRef) -> bool:
        """Return True if the inode does not count a ref."""
        return isinstance(ref, BorrowedRef) or ref.slice_id in self.borrowed

    def change(self, **changes: int) -> Attr:
        """Sets attributes and moves ctime."""
        values: dict[str, Any] = {"ctime_ns": time.time_ns(), **changes}
        self.attr = replace(self.attr, **values)
        return self.attr


@dataclass(slots=True)
class Trashed:
    """An inode whose last name was removed. Unless it is open, only the trash knows it."""

    node: Node
    parent: Ino
    name: bytes
    deleted_at: datetime
    dir_mtime_ns: int | None


@dataclass(slots=True)
class SliceRange:
    """Slice ids given to a session; `ended_at` (monotonic): when its end was seen."""

    first: int
    count: int
    session: SessionId
    ended_at: float | None = None


class MemoryVolume:
    """One volume in memory.

    `bytes_limit` and `inodes_limit` are its quota. `freed_slices` holds the slices of the object
    store that no file references now: size and time (monotonic). Removed files are kept for
    `trash_seconds`. `removed_links` holds, by inode, directory and name, what was removed while
    the inode had other names.
    """

    def __init__(self, bytes_limit: int | None = None, inodes_limit: int | None = None) -> None:
        self.bytes_limit = bytes_limit
        self.inodes_limit = inodes_limit
        self.inodes_used = 0
        self.trash_seconds = 0
        self.snapshots: dict[bytes, Snapshot] = {}
        self.trash: dict[Ino, Trashed] = {}
        self.removed_links: dict[tuple[Ino, Ino, bytes], Trashed] = {}
        self.freed_slices: dict[SliceId, tuple[int, float]] = {}
        self.ranges: list[SliceRange] = []
        self.oldest: dict[SessionId, Callable[[], float | None]] = {}
        self.upkeep: tuple[SessionId, float] = (SessionId(0), 0.0)
        self.epochs: dict[SessionId, int] = {}
        self.locks = LockTable()
        self.sustained: dict[Ino, dict[SessionId, int]] = {}
        self.nodes: dict[Ino, Node] = {}
        self._used_slices: set[SliceId] = set()
        self._next_id = int(ROOT_INO)
        self._next_snapshot = rules.SNAPSHOTS_INO + 1
        self._next_slice = 1
        self._next_session = 1
        self.add(stat.S_IFDIR | 0o755, 0, 0, nlink=2).parent = ROOT_INO
        self.inodes_used = 0

    @property
    def bytes_used(self) -> int:
        """The use: of the inodes that count, and of slices that no inode counts."""
        return sum(node.use for node in self.nodes.values()) + sum(self.shared().values())

    def shared(self) -> dict[SliceId, int]:
        """The sizes of the slices whose refs are all borrowed."""
        sizes: dict[SliceId, int] = {}
        own: set[SliceId] = set()
        for node in self.all_nodes():
            for ref in node.refs:
                if node.borrows(ref):
                    sizes[ref.slice_id] = ref.size
                else:
                    own.add(ref.slice_id)
        return {slice_id: size for slice_id, size in sizes.items() if slice_id not in own}

    def all_nodes(self) -> list[Node]:
        """All inodes, with those that only the trash keeps."""
        kept = [one.node for ino, one in self.trash.items() if ino not in self.nodes]
        return [*self.nodes.values(), *kept]

    # -- sessions --

    def register(self) -> SessionId:
        """A new session, alive until `end`."""
        session = SessionId(self._next_session)
        self._next_session += 1
        self.epochs[session] = 1
        return session

    def fence(self, session: SessionId) -> None:
        """Ends a session from outside: its calls fail, its open files are let go."""
        self.end(session)

    def end(self, session: SessionId) -> None:
        """Ends a session; frees what only it sustained."""
        self.epochs.pop(session, None)
        self.oldest.pop(session, None)
        self.locks.end(session)
        for ino in [ino for ino, holders in self.sustained.items() if session in holders]:
            self.drop_handles(ino, session)

    # -- inodes --

    def fresh_id(self) -> int:
        """A number never given before: for inodes and cookies."""
        number = self._next_id
        self._next_id += 1
        return number

    def fresh_snapshot_id(self) -> Ino:
        """A number for an inode of a snapshot."""
        self._next_snapshot += 1
        return Ino(self._next_snapshot - 1)

    def reserve(self, count: int, session: SessionId) -> SliceId:
        """The first of `count` slice ids never given before."""
        first = self._next_slice
        self._next_slice += count
        self.ranges.append(SliceRange(first, count, session))
        return SliceId(first)

    def add(
        self, mode: int, uid: int, gid: int, *, nlink: int, rdev: int = 0, size: int = 0
    ) -> Node:
        """A new inode with no name. QuotaExceeded."""
        if self.inodes_limit is not None and self.inodes_used + 1 > self.inodes_limit:
            raise QuotaExceeded
        ino = Ino(self.fresh_id())
        now = time.time_ns()
        node = Node(Attr(ino, mode, nlink, uid, gid, rdev, size, now, now, now, 0))
        self.nodes[ino] = node
        self.inodes_used += 1
        return node

    def node(self, ino: Ino) -> Node:
        """An inode that exists. NotFound."""
        try:
            return self.nodes[ino]
        except KeyError:
            raise NotFound from None

    def just_gone(self, ino: Ino) -> Node:
        """An inode that exists, or a file whose last name was taken only just. NotFound."""
        entry = self.trash.get(ino)
        if ino in self.nodes or entry is None or not entry.node.attr.is_file:
            return self.node(ino)
        if datetime.now(UTC) - entry.deleted_at > JUST_GONE:
            raise NotFound
        return entry.node

    def take_up(self, ino: Ino) -> Node:
        """As `just_gone`; a file is counted as use again."""
        node = self.just_gone(ino)
        if ino not in self.nodes:
            self.nodes[ino] = node
            self.inodes_used += 1
        return self.node(ino)

    def directory(self, ino: Ino) -> Node:
        """A directory that exists and has not been removed. NotFound, NotDirectory."""
        node = self.node(ino)
        if not node.attr.is_dir:
            raise NotDirectory
        return node

    def entry(self, parent: Ino, name: bytes) -> tuple[Node, Node]:
        """A directory and the inode of one of its names. NotFound, NotDirectory."""
        rules.check_name(name)
        directory = self.directory(parent)
        if name not in directory.entries:
            raise NotFound
        return directory, self.node(directory.entries[name].ino)

    def touch(self, directory: Node, subdirectories: int = 0, at_ns: int | None = None) -> int:
        """Moves a directory's times after a change of its entries; its mtime before."""
        now = time.time_ns() // 1000 * 1000 if at_ns is None else at_ns
        before, nlink = directory.attr.mtime_ns, directory.attr.nlink + subdirectories
        directory.change(mtime_ns=now, ctime_ns=now, nlink=nlink)
        return before

    def drop_link(self, node: Node, parent: Ino, name: bytes, before_ns: int | None = None) -> None:
        """Takes one name from a non-directory; with its last one it goes to the trash, or away.

        `before_ns`: mtime of the directory before its entry was removed. None: another took the
        name, or the directory is going as well.
        """
        attr = node.attr
        if self.trash_seconds and not rules.is_read_only(attr.ino):
            trashed = self._trashed(node, parent, name, before_ns)
            if attr.nlink <= 1:
                self.trash[attr.ino] = trashed
            else:
                self.removed_links[attr.ino, parent, name] = trashed
        node.change(nlink=attr.nlink - 1)
        self.free_if_unused(node)

    def drop_directory(
        self, node: Node, parent: Ino, name: bytes, before_ns: int | None = None
    ) -> None:
        """Ends a directory; it goes to the trash, or away. `before_ns` as in `drop_link`."""
        ino = node.attr.ino
        node.change(nlink=0)
        if self.trash_seconds and not rules.is_read_only(ino):
            self.trash[ino] = self._trashed(node, parent, name, before_ns)
        self.free_if_unused(node)

    def remove(self, node: Node, parent: Ino, name: bytes, before_ns: int | None) -> None:
        """Ends a tree whose entry was deleted; `before_ns` as in `drop_link`."""
        before: int | None = before_ns
        doomed, emptied = [(node, parent, name, before)], []
        while doomed:
            node, parent, name, before = doomed.pop()
            if not node.attr.is_dir:
                self.drop_link(node, parent, name, before)
                continue
            emptied.append((node, parent, name, before))
            for child, entry in node.entries.items():
                doomed.append((self.nodes[entry.ino], node.attr.ino, child, None))
            node.entries = {}
        for node, parent, name, before in reversed(emptied):
            self.drop_directory(node, parent, name, before)

    def _trashed(self, node: Node, parent: Ino, name: bytes, before_ns: int | None) -> Trashed:
        """An entry of the trash; its time is the mtime that the removal gave the directory."""
        at = datetime.now(UTC)
        if before_ns is not None:
            micros = self.nodes[parent].attr.mtime_ns // 1000
            at = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)
        return Trashed(node, parent, name, at, before_ns)

    def free_if_unused(self, node: Node) -> None:
        """Lets go of an inode with neither name nor open handle."""
        if node.attr.nlink or self.sustained.get(node.attr.ino):
            return
        del self.nodes[node.attr.ino]
        self.inodes_used -= 1
        if node.attr.ino not in self.trash:
            self.free_slices(node)
            return
        lent = {
            ref.slice_id for other in self.all_nodes() for ref in other.refs if other.borrows(ref)
        }
        node.borrowed |= lent & {ref.slice_id for ref in node.refs}

    def free_slices(self, node: Node) -> None:
        """Lets go of the slices of an inode that is gone, and of its removed names."""
        ino = node.attr.ino
        for key in [key for key in self.removed_links if key[0] == ino]:
            del self.removed_links[key]
        gone, node.refs = node.refs, []
        self.note_freed(node, gone)

    # -- open handles --

    def sustain(self, ino: Ino, session: SessionId) -> None:
        """Counts one open handle of a session."""
        holders = self.sustained.setdefault(ino, {})
        holders[session] = holders.get(session, 0) + 1

    def release(self, ino: Ino, session: SessionId) -> None:
        """Drops one open handle of a session; more than were opened are ignored."""
        holders = self.sustained.get(ino, {})
        if holders.get(session, 0) > 1:
            holders[session] -= 1
        elif session in holders:
            self.drop_handles(ino, session)

    def drop_handles(self, ino: Ino, session: SessionId) -> None:
        """Drops all open handles of a session on an inode."""
        holders = self.sustained[ino]
        del holders[session]
        if not holders:
            del self.sustained[ino]
            if ino in self.nodes:
                self.free_if_unused(self.nodes[ino])

    # -- bytes --

    def charge(self, growth: int) -> None:
        """Checks a change of what a file holds. QuotaExceeded when it grows beyond the limit."""
        limit = self.bytes_limit
        if growth > 0 and limit is not None and self.bytes_used + growth > limit:
            raise QuotaExceeded

    def resize(self, node: Node, size: int) -> None:
        """Cuts or extends a regular file: refs are clipped, so cut bytes never come back."""
        now = time.time_ns()
        if size == node.attr.size:
            if used_bytes(node.attr):
                node.change(mtime_ns=now, ctime_ns=now)
            return
        gone = [ref for ref in node.refs if ref.pos >= size]
        node.refs = [
            replace(ref, length=min(ref.length, size - ref.pos))
            for ref in node.refs
            if ref.pos < size
        ]
        self.note_freed(node, gone)
        holes = rules.holes(((ref.pos, ref.length) for ref in node.refs), size)
        self.charge(size - holes - used_bytes(node.attr))
        node.change(
            size=size,
            mtime_ns=now,
            ctime_ns=now,
            version=node.attr.version + 1,
            holes=holes,
        )

    def commit(self, node: Node, commit: Commit) -> None:
        """Makes the extents of a commit visible."""
        if not commit.extents:
            return
        base = node.attr.size if commit.append else 0
        end = max(base + e.pos + e.length for e in commit.extents)
        if end > MAX_FILE_SIZE:
            raise FileTooBig
        if any(e.inline is not None and e.slice_id in self._used_slices for e in commit.extents):
            raise InvalidArgument("slice id used twice")
        if any(e.inline is None and e.slice_id in self.freed_slices for e in commit.extents):
            raise InvalidArgument("slice id is garbage")
        size = max(node.attr.size, end)
        places = [(ref.pos, ref.length) for ref in node.refs]
        places += [(base + extent.pos, extent.length) for extent in commit.extents]
        holes = rules.holes(places, size)
        own = [(ref.pos, ref.length) for ref in node.refs if not node.borrows(ref)]
        own += places[len(node.refs) :]
        self.charge(size - rules.holes(own, size) - node.use)
        version = node.attr.version
        for extent in commit.extents:
            if extent.inline is not None:
                self._used_slices.add(extent.slice_id)
            for pos, off, length in rules.pieces(extent, base):
                self._overlay(node, extent, pos, off, length)
                version += 1
        mtime = time.time_ns() if commit.mtime_ns is None else commit.mtime_ns
        node.change(size=size, mtime_ns=mtime, version=version, holes=holes)

    def file_map(self, node: Node) -> FileMap:
        """Attributes and slices."""
        return FileMap(node.attr, tuple(_plain(ref) for ref in node.refs))

    def _overlay(self, node: Node, extent: Extent, pos: int, off: int, length: int) -> None:
        """Puts one piece on top and drops the refs of its chunk that it covers wholly."""
        ref = SliceRef(
            pos, extent.slice_id, extent.length, off, length, extent.checksums, extent.inline
        )
        chunk = pos // CHUNK_SIZE
        if length == extent.length:
            ref = self._merged(node, ref, chunk)
        gone = [
            old
            for old in node.refs
            if old.pos // CHUNK_SIZE == chunk
            and ref.pos <= old.pos
            and old.pos + old.length <= ref.pos + ref.length
        ]
        node.refs = [old for old in node.refs if old not in gone]
        node.refs.append(ref)
        self.note_freed(node, gone)

    def _merged(self, node: Node, ref: SliceRef, chunk: int) -> SliceRef:
        """The ref joined with the chunk's last one, when both are inline and fit together."""
        last = next((old for old in reversed(node.refs) if old.pos // CHUNK_SIZE == chunk), None)
        if last is None or last.inline is None or ref.inline is None:
            return ref
        if node.borrows(last):
            return ref
        if last.pos + last.length != ref.pos or last.length + ref.length > INLINE_MAX:
            return ref
        data = last.inline[last.off : last.off + last.length] + ref.inline
        return replace(ref, pos=last.pos, size=len(data), off=0, length=len(data), inline=data)

    def used_slices(self) -> set[int]:
        """All slices that a file, or a file in the trash, shows."""
        return {ref.slice_id for node in self.all_nodes() for ref in node.refs}

    def note_freed(self, node: Node, gone: list[SliceRef]) -> None:
        """Objects of slices that lost their last ref wait for garbage collection."""
        stored = [ref for ref in gone if ref.inline is None]
        kept = self.used_slices() | {ref.slice_id for ref in node.refs} if stored else set()
        for ref in stored:
            if ref.slice_id not in kept:
                self.freed_slices.setdefault(ref.slice_id, (ref.size, time.monotonic()))


def _plain(ref: SliceRef) -> SliceRef:
    """A ref as a client sees it."""
    if not isinstance(ref, BorrowedRef):
        return ref
    return SliceRef(ref.pos, ref.slice_id, ref.size, ref.off, ref.length, ref.checksums, ref.inline)
