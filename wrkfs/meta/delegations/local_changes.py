"""Decides changes in delegated directories, with the rules of the SQL functions. Nothing waits.

Each method makes the change and returns its answer, raises the error that the SQL function would
answer, or returns None: the cache does not know enough, or the change is not of a local kind. Then
nothing has changed, and the database decides.
"""

from __future__ import annotations

import stat
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from wrkfs.errors import Exists, FileTooBig, IsDirectory, NotDirectory, NotEmpty, NotFound
from wrkfs.layout import MAX_FILE_SIZE
from wrkfs.meta import rules
from wrkfs.meta.delegations.delta import (
    cut_record,
    emptied_record,
    extent_record,
    gone_record,
    inode_record,
    link_record,
    put_record,
)
from wrkfs.meta.leases.store import filled
from wrkfs.types import Attr, FileMap, Moved, RenameFlags, SetAttr

if TYPE_CHECKING:
    from collections.abc import Callable

    from wrkfs.meta.delegations.delta import Record
    from wrkfs.meta.delegations.flusher import Flusher
    from wrkfs.meta.delegations.room import Room
    from wrkfs.meta.leases.cached_directory import CachedDirectory
    from wrkfs.meta.leases.lease_table import LeaseTable
    from wrkfs.types import Caller, Commit, Ino

_GROWTH = 8
"""Weight that one change may add to the lease table."""


class LocalChanges:
    """Changes of one session in its delegated directories.

    Critical section: each method is one step: it reads the lease table, writes the journal, and
    updates delta and table.
    """

    def __init__(
        self,
        table: LeaseTable,
        flusher: Flusher,
        room: Room,
        is_open: Callable[[Ino], bool],
    ) -> None:
        """`is_open` returns True for inodes with open handles of this session."""
        self._table = table
        self._flusher = flusher
        self._room = room
        self._is_open = is_open

    def directory(self, ino: Ino) -> CachedDirectory | None:
        """Return the cache of a delegated directory whose attributes are known, if it is usable."""
        table = self._table
        cached = table.usable(ino)
        if cached is None or not cached.delegated or cached.attr is None:
            return None
        return None if table.changes.may_touch(ino) else cached

    # -- names --

    def make(
        self,
        parent: Ino,
        name: bytes,
        ino: Ino,
        mode: int,
        caller: Caller,
        *,
        rdev: int = 0,
        target: bytes = b"",
    ) -> Attr | None:
        """Create an inode `ino` and its name, as `wrkfs.make` and `wrkfs.create` do."""
        self._table.grow(_GROWTH)
        cached = self.directory(parent)
        if cached is None or cached.attr is None or not _knows(cached, name):
            return None
        if cached.names.get(name) is not None:
            raise Exists(name)
        if not self._room.take(0, 1):
            return None
        above, is_dir = cached.attr, stat.S_ISDIR(mode)
        now, gid = _now(above), caller.gid
        if above.mode & stat.S_ISGID:
            gid, mode = above.gid, mode | (stat.S_ISGID if is_dir else 0)
        attr = Attr(
            ino, mode, 1 + is_dir, caller.uid, gid, rdev, len(target), now, now, now, 0, 0, parent
        )
        records = [
            inode_record(attr, new=True),
            put_record(parent, name, ino, ino, fresh=True),
            inode_record(_stamped(above, now, int(is_dir))),
        ]
        if target:
            records.append(link_record(ino, target))
        if not self._record(records):
            self._room.put_back(0, 1)
            return None
        cached.put(name, ino, ino)
        cached.stamp(now, int(is_dir))
        if is_dir:
            directory = self._table.adopt(ino)
            directory.attr, directory.complete, directory.delegated = attr, True, True
        else:
            self._table.put_attr(cached, attr)
            if stat.S_ISREG(mode):
                self._table.put_map(FileMap(attr, ()))
        return attr

    def unlink(self, parent: Ino, name: bytes) -> int | None:
        """Remove the only name of a file that this session has not open."""
        cached = self.directory(parent)
        if cached is None or cached.attr is None or not _knows(cached, name):
            return None
        entry = cached.names.get(name)
        if entry is None:
            raise NotFound(name)
        if entry.ino in self._table.directories:
            raise IsDirectory(name)
        attr = self._removable(entry.ino, parent)
        if attr is None:
            return None
        now = _now(cached.attr)
        records = [
            cut_record(parent, name),
            gone_record(entry.ino, parent, name, now, cached.attr.mtime_ns),
            inode_record(_stamped(cached.attr, now)),
        ]
        if not self._record(records):
            return None
        self._table.drop_file(entry.ino)
        cached.kernel_inodes.discard(entry.ino)
        cached.put_absent(name)
        cached.stamp(now)
        return now

    def rmdir(self, parent: Ino, name: bytes) -> tuple[Ino, int] | None:
        """Remove an empty delegated directory; return its inode and the time."""
        cached = self.directory(parent)
        if cached is None or cached.attr is None or not _knows(cached, name):
            return None
        entry = cached.names.get(name)
        if entry is None:
            raise NotFound(name)
        if entry.ino in self._table.homes:
            raise NotDirectory(name)
        below = self.directory(entry.ino)
        if below is None or below.attr is None or not below.complete:
            return None
        if any(child is not None for child in below.names.values()):
            raise NotEmpty(name)
        now = _now(cached.attr)
        records = [
            cut_record(parent, name),
            gone_record(entry.ino, parent, name, now, cached.attr.mtime_ns),
            inode_record(_stamped(cached.attr, now, -1)),
        ]
        if not self._record(records):
            return None
        cached.put_absent(name)
        cached.stamp(now, -1)
        return entry.ino, now

    def rename(
        self,
        source: tuple[Ino, bytes],
        goal: tuple[Ino, bytes],
        cookie: int,
        flags: RenameFlags,
    ) -> Moved | None:
        """Move a name to a name that is free, or that only an unopened file has.

        A directory moves only within its directory, so that no loop can arise.
        """
        (parent, name), (new_parent, new_name) = source, goal
        old, new = self.directory(parent), self.directory(new_parent)
        if old is None or new is None or old.attr is None or new.attr is None:
            return None
        if flags & RenameFlags.EXCHANGE or not (_knows(old, name) and _knows(new, new_name)):
            return None
        entry, target = old.names.get(name), new.names.get(new_name)
        if entry is None:
            raise NotFound(name)
        if target is not None and flags & RenameFlags.NOREPLACE:
            raise Exists(new_name)
        if target is not None and target.ino == entry.ino:
            return None
        moved = self._movable(entry.ino, parent, across=old is not new)
        if moved is None or (target is not None and moved.is_dir):
            return None
        if target is not None and self._removable(target.ino, new_parent) is None:
            return None
        now = max(_now(old.attr), _now(new.attr))
        moved = replace(moved, ctime_ns=max(now, moved.ctime_ns), parent=new_parent)
        records = [
            cut_record(parent, name),
            put_record(new_parent, new_name, entry.ino, cookie, fresh=target is None),
            inode_record(moved),
            inode_record(_stamped(old.attr, now)),
        ]
        if old is not new:
            records.append(inode_record(_stamped(new.attr, now)))
        if target is not None:
            records.append(gone_record(target.ino, new_parent, new_name, now, None))
        if not self._record(records):
            return None
        if target is not None:
            self._table.drop_file(target.ino)
            new.kernel_inodes.discard(target.ino)
        new_cookie = 0 if target is not None else cookie
        self._show_moved(source, goal, moved, new_cookie)
        old.stamp(now)
        new.stamp(now)
        return Moved(now, new_cookie)

    def _show_moved(
        self, source: tuple[Ino, bytes], goal: tuple[Ino, bytes], moved: Attr, cookie: int
    ) -> None:
        """Update the table after a rename. `cookie` 0: the name keeps the cookie of its place."""
        table, (parent, name), (new_parent, new_name) = self._table, source, goal
        old, new = table.directories[parent], table.directories[new_parent]
        replaced = new.names.get(new_name)
        if not cookie and replaced is not None:
            cookie = replaced.cookie
        old.put_absent(name)
        new.put_absent(new_name)
        new.put(new_name, moved.ino, cookie)
        if moved.is_dir:
            table.directories[moved.ino].attr = moved
            return
        file_map = old.maps.get(moved.ino)
        relied = moved.ino in old.kernel_inodes
        table.drop_file(moved.ino)
        old.kernel_inodes.discard(moved.ino)
        table.put_attr(new, moved)
        if relied:
            new.kernel_inodes.add(moved.ino)
        if file_map is not None:
            table.put_map(FileMap(moved, file_map.refs))

    # -- inodes --

    def setattr(self, ino: Ino, changes: SetAttr) -> Attr | None:
        """Change attributes. A file may only be cut to no bytes, not to another size.

        Only a new inode takes an earlier access time: a batch moves access times forward, because
        other sessions move them without a recall.
        """
        attr = self._covered(ino)
        if attr is None:
            return None
        back = changes.atime_ns is not None and changes.atime_ns < attr.atime_ns
        if back and not self._flusher.delta.is_new(ino):
            return None
        if changes.size is not None:
            if changes.size or not attr.is_file or not attr.size:
                return None
            return self._empty(attr, changes)
        return self._put(self._changed(attr, changes))

    def empty(self, ino: Ino) -> FileMap | None:
        """Cut a file to no bytes, as an open with O_TRUNC does; return its map."""
        attr = self._covered(ino)
        if attr is None or not attr.is_file:
            return None
        changed = self._empty(attr, SetAttr(mtime_now=True))
        return None if changed is None else FileMap(changed, ())

    def _empty(self, attr: Attr, changes: SetAttr) -> Attr | None:
        if changes.mtime_ns is None:
            changes = replace(changes, mtime_now=True)
        changed = replace(
            self._changed(attr, changes),
            size=0,
            holes=0,
            version=attr.version + (attr.size > 0),
        )
        if not self._record([emptied_record(attr.ino), inode_record(changed)]):
            return None
        self._show(changed)
        self._table.put_map(FileMap(changed, ()))
        return changed

    @staticmethod
    def _changed(attr: Attr, changes: SetAttr) -> Attr:
        """Return attributes with all changes but that of the size."""
        now, mode = _now(attr), attr.mode
        if changes.mode is not None:
            mode = stat.S_IFMT(mode) | stat.S_IMODE(changes.mode)
        elif not attr.is_dir and (changes.uid is not None or changes.gid is not None):
            mode = rules.without_set_ids(mode)
        atime = now if changes.atime_now else changes.atime_ns
        mtime = now if changes.mtime_now else changes.mtime_ns
        return replace(
            attr,
            mode=mode,
            uid=attr.uid if changes.uid is None else changes.uid,
            gid=attr.gid if changes.gid is None else changes.gid,
            atime_ns=attr.atime_ns if atime is None else atime,
            mtime_ns=attr.mtime_ns if mtime is None else mtime,
            ctime_ns=now,
        )

    def touch(self, ino: Ino, atime_ns: int) -> bool:
        """Move an access time forward; return False if the database must do it."""
        attr = self._covered(ino)
        if attr is None:
            return False
        changed = replace(attr, atime_ns=max(attr.atime_ns, atime_ns))
        return self._put(changed) is not None

    def commit(self, commit: Commit) -> Attr | None:
        """Add extents to a file, as `wrkfs.commit` does. Raises FileTooBig."""
        attr = self._covered(commit.ino)
        if attr is None or not attr.is_file or not commit.extents:
            return None
        base = attr.size if commit.append else 0
        if attr.holes and any(base + extent.pos < attr.size for extent in commit.extents):
            return None  # the database knows which bytes the holes are
        size, version, holes = attr.size, attr.version, attr.holes
        records: list[Record] = []
        for extent in commit.extents:
            pos, end = base + extent.pos, base + extent.pos + extent.length
            if end > MAX_FILE_SIZE:
                raise FileTooBig
            if holes and pos < size:
                return None
            holes += max(0, pos - size)
            version += sum(1 for _ in rules.pieces(extent, base))
            size = max(size, end)
            records.append(extent_record(commit.ino, replace(extent, pos=pos)))
        growth = size - holes - (attr.size - attr.holes)
        if not self._room.take(growth, 0):
            return None
        now = _now(attr)
        changed = replace(
            attr,
            size=size,
            version=version,
            holes=holes,
            ctime_ns=now,
            mtime_ns=now if commit.mtime_ns is None else commit.mtime_ns,
        )
        before = self._table.file_map(commit.ino)
        if not self._record([*records, inode_record(changed)]):
            self._room.put_back(growth, 0)
            return None
        self._show(changed)
        file_map = None if before is None else filled(before, commit, changed)
        if file_map is not None:
            self._table.put_map(file_map)
        return changed

    # -- internal --

    def _covered(self, ino: Ino) -> Attr | None:
        """Return the attributes of an inode that a delegation covers."""
        home = self._table.homes.get(ino, ino)
        cached = self._table.usable(home)
        if cached is None or not cached.delegated or self._table.changes.may_touch(ino):
            return None
        attr = self._table.known(ino)
        return attr if attr is None or attr.is_dir or attr.nlink == 1 else None

    def _removable(self, ino: Ino, parent: Ino) -> Attr | None:
        """Return the attributes of a file whose only name may be removed here."""
        if self._table.homes.get(ino) != parent or self._is_open(ino):
            return None
        return self._covered(ino)

    def _movable(self, ino: Ino, parent: Ino, *, across: bool) -> Attr | None:
        """Return the attributes of an inode that may move here."""
        if self._table.homes.get(ino) == parent:
            return self._covered(ino)
        return None if across or self.directory(ino) is None else self._covered(ino)

    def _put(self, attr: Attr) -> Attr | None:
        """Record changed attributes of one inode."""
        if not self._record([inode_record(attr)]):
            return None
        self._show(attr)
        return attr

    def _show(self, attr: Attr) -> None:
        cached = self._table.directories[attr.ino if attr.is_dir else attr.parent]
        if attr.is_dir:
            cached.attr = attr
        else:
            self._table.put_attr(cached, attr)

    def _record(self, records: list[Record]) -> bool:
        """Add records to journal and delta; return False if the journal cannot be written."""
        try:
            self._flusher.record(records)
        except OSError:
            return False
        self._table.changes.invalidate_reads()
        return True


def _knows(cached: CachedDirectory, name: bytes) -> bool:
    # Listings, and so the cache, do not have the directory of the snapshots.
    return name != rules.SNAPSHOTS_NAME and (cached.complete or name in cached.names)


def _now(attr: Attr) -> int:
    """Return the time of a change, in whole microseconds; no earlier than the inode's last one."""
    return max(time.time_ns() // 1000 * 1000, attr.ctime_ns)


def _stamped(attr: Attr, now: int, subdirectories: int = 0) -> Attr:
    """Return the attributes of a directory after a change of its entries."""
    return replace(attr, mtime_ns=now, ctime_ns=now, nlink=attr.nlink + subdirectories)
