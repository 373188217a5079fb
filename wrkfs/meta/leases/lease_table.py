"""The state of a leasing store: leased directories and what is cached of them. Nothing here waits.

`store` answers calls from the table, `lifecycle` takes leases and gives them back.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING

from wrkfs.meta.interface.lease_times import KERNEL_MAX, KERNEL_MIN
from wrkfs.meta.leases.cached_directory import (
    MAP_BYTES,
    MAP_REFS,
    CachedDirectory,
    Changes,
    Mark,
    inline_bytes,
    weight,
)
from wrkfs.meta.postgres.sessions import boottime
from wrkfs.types import Attr

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from wrkfs.meta.interface.leases import LeaseStore
    from wrkfs.meta.leases.cached_directory import Change, Key
    from wrkfs.types import Dentry, FileMap, Ino

ROOM = 200_000
"""Maximum number of cached names and attributes: about 100 MB."""
FOLDERS = 4096
"""Maximum number of remembered directories without a lease; the session leases those first."""
_ANSWER = 2
"""Weight that the answer to one change may add: a name, and the attributes of an inode."""


async def _no_kernel(_directories: Sequence[Ino], _inos: set[Ino]) -> None:
    return


def _no_eviction(_directories: list[Ino], _inos: set[Ino]) -> None:
    return


_but_atime = attrgetter(*(field.name for field in fields(Attr) if field.name != "atime_ns"))


def _describes(cached: Attr | None, attr: Attr) -> bool:
    """Return True if the cached attributes are these, apart from a newer access time.

    This session moves access times when it reads, and stores them later (`wrkfs.atime`).
    """
    if cached is None or cached.atime_ns == attr.atime_ns:
        return cached == attr
    return cached.atime_ns < attr.atime_ns and _but_atime(cached) == _but_atime(attr)


class LeaseTable:
    """Leased directories with their caches, and what a kernel may rely on.

    Critical section: no method waits, so every change of the cache is one step.

    `_size` is never less than the weight of the cache. It grows before something is added, and
    shrinks only when the table counts everything again (`grow`).
    """

    def __init__(self, inner: LeaseStore, *, room: int = ROOM) -> None:
        """`room` is the maximum number of cached names and attributes."""
        self.on_drop: Callable[[Sequence[Ino], set[Ino]], Awaitable[None]] = _no_kernel
        """Awaited before leases are given back, and before attributes lose their lease. It receives
        directories, and inodes whose attributes the kernel may rely on (`attr_validity`)."""
        self.on_evict: Callable[[list[Ino], set[Ino]], None] = _no_eviction
        """Called after `grow` has evicted directories, with the arguments of `on_drop`."""
        self.directories: OrderedDict[Ino, CachedDirectory] = OrderedDict()
        """The leased directories, the least recently used first."""
        self.homes: dict[Ino, Ino] = {}
        """The leased directory that has the attributes of a file."""
        self.folders: OrderedDict[Ino, None] = OrderedDict()
        """Directories without a lease that recent answers named."""
        self.recalls = 0
        """Number of leases that other sessions have recalled."""
        self.changes = Changes()
        self._inner = inner
        self._room = room
        self._size = self._reserved = 0
        self._tick = 0

    # -- what a kernel may rely on --

    def holds(self, directory: Ino) -> bool:
        """Return True if the session has a lease on a directory and so receives its recalls."""
        return directory in self.directories

    def entry_validity(self, parent: Ino, name: bytes, ino: Ino | None) -> float:
        """Return for how many seconds a name refers to an inode (None: does not exist)."""
        cached = self.usable(parent)
        if cached is None or self.changes.touches((parent, name)):
            return 0.0
        entry = cached.names.get(name)
        if entry is None and name not in cached.names and not cached.complete:
            return 0.0
        return self._validity() if (entry and entry.ino) == ino else 0.0

    def attr_validity(self, attr: Attr) -> float:
        """Return for how many seconds the kernel may rely on attributes; records that it may."""
        home = attr.ino if attr.is_dir else self.homes.get(attr.ino)
        cached = None if home is None else self.usable(home)
        if home is None or cached is None or self.changes.touches(attr.ino):
            return 0.0
        if not _describes(cached.attr if attr.is_dir else cached.attrs.get(attr.ino), attr):
            return 0.0
        if attr.ino not in cached.kernel_inodes:
            self.grow(1)
            cached.kernel_inodes.add(attr.ino)
        return self._validity() if self.holds(home) else 0.0

    def listing_validity(self, parent: Ino, entries: Sequence[Dentry]) -> list[tuple[float, float]]:
        """Return `entry_validity` and `attr_validity` of each entry, in one pass."""
        cached = self.usable(parent)
        validity = self._validity()
        if cached is None or not validity or self.changes.touches_names(parent):
            return [(0.0, self.attr_validity(entry.attr)) for entry in entries]
        inodes, names, attrs = cached.kernel_inodes, cached.names, cached.attrs
        self.grow(sum(entry.attr.ino not in inodes for entry in entries))
        validities = []
        for entry in entries:
            attr, name = entry.attr, names.get(entry.name)
            name_validity = validity if name is not None and name.ino == attr.ino else 0.0
            if not _describes(attrs.get(attr.ino), attr) or self.changes.touches(attr.ino):
                validities.append((name_validity, self.attr_validity(attr)))
            else:
                inodes.add(attr.ino)
                validities.append((name_validity, validity))
        # `grow` may have evicted this very directory.
        return validities if self.holds(parent) else [(0.0, 0.0)] * len(validities)

    def _validity(self) -> float:
        validity = min(self._inner.trusted_until - boottime(), KERNEL_MAX)
        return validity if validity > KERNEL_MIN else 0.0

    # -- reading the cache --

    def usable(self, directory: Ino) -> CachedDirectory | None:
        """Return the cache of a directory if it may be served now; marks it as recently used."""
        cached = self.directories.get(directory)
        if cached is None or boottime() > self._inner.trusted_until:
            return None
        self.directories.move_to_end(directory)
        return cached

    def attr(self, ino: Ino) -> Attr | None:
        """Return the cached attributes of an inode if they may be served now."""
        if self.changes.touches(ino) or self.usable(self.homes.get(ino, ino)) is None:
            return None
        return self.known(ino)

    def known(self, ino: Ino) -> Attr | None:
        """Return the cached attributes of an inode, whether they may be served now or not."""
        home = self.homes.get(ino)
        cached = self.directories.get(ino if home is None else home)
        if cached is None:
            return None
        return cached.attr if home is None else cached.attrs.get(ino)

    def peek(self, parent: Ino, name: bytes) -> Attr | None:
        """Return the cached attributes of a name if they may be served now."""
        cached = self.usable(parent)
        entry = None if cached is None else cached.names.get(name)
        return None if entry is None else self.attr(entry.ino)

    def file_map(self, ino: Ino) -> FileMap | None:
        """Return the cached map of a file, with its cached attributes, if both may be served."""
        attr = self.attr(ino)
        home = self.homes.get(ino)
        cached = None if home is None or attr is None else self.directories.get(home)
        file_map = None if cached is None else cached.maps.get(ino)
        if file_map is None or attr is None or file_map.attr.version != attr.version:
            return None
        return file_map if file_map.attr is attr else replace(file_map, attr=attr)

    def ino_of(self, parent: Ino, name: bytes) -> Ino | None:
        """Return the inode of a cached name, None if the name is unknown or does not exist."""
        cached = self.directories.get(parent)
        entry = None if cached is None else cached.names.get(name)
        return None if entry is None else entry.ino

    def inodes_of(self, *names: tuple[Ino, bytes]) -> tuple[set[Ino], bool]:
        """Return the inodes of names that will change, and whether the cache knows all of them."""
        inos = {ino for ino in (self.ino_of(*name) for name in names) if ino is not None}
        is_sure = all(self.knows(*name) and not self.changes.touches(name) for name in names)
        return inos, is_sure

    def knows(self, parent: Ino, name: bytes) -> bool:
        """Return True if the cache knows the inode of a name, or that the name does not exist."""
        cached = self.directories.get(parent)
        return cached is not None and (cached.complete or name in cached.names)

    # -- caching answers --

    def mark(self) -> Mark | None:
        """Return a mark to take before a query; None if its answer must not be cached."""
        stamp = self.changes.mark
        return None if stamp is None else Mark(stamp, self._tick)

    def current(self, directory: Ino, mark: Mark | None) -> CachedDirectory | None:
        """Return the cache for the answer to a query that was sent at `mark`, or None."""
        cached = self.directories.get(directory)
        if cached is None or mark is None or cached.since > mark.tick:
            return None
        return cached if self.changes.mark == mark.stamp else None

    def add(self, attr: Attr, mark: Mark | None) -> None:
        """Cache settled attributes if a lease covers them."""
        self.grow(1)
        self.add_settled(attr, mark)

    def add_settled(self, attr: Attr, mark: Mark | None) -> None:
        """Cache settled attributes as `add`; the caller has called `grow`."""
        if attr.is_dir:
            cached = self.current(attr.ino, mark)
            if cached is not None:
                cached.attr = attr
            else:
                self.folders[attr.ino] = None
                if len(self.folders) > FOLDERS:
                    self.folders.popitem(last=False)
        elif attr.nlink == 1:
            cached = self.current(attr.parent, mark)
            if cached is not None:
                self.put_attr(cached, attr)

    def put_attr(self, cached: CachedDirectory, attr: Attr) -> None:
        """Cache the attributes of a file in its directory, and drop a map of another version."""
        home = self.homes.get(attr.ino)
        if home is not None and home != attr.parent:
            self.drop_file(attr.ino)
        file_map = cached.maps.get(attr.ino)
        if file_map is not None and file_map.attr.version != attr.version:
            cached.drop_map(attr.ino)
        cached.attrs[attr.ino] = attr
        self.homes[attr.ino] = attr.parent

    def add_map(self, file_map: FileMap, mark: Mark | None) -> None:
        """Cache the map that a query sent at `mark` returned.

        A map does not say whether it is settled, so the table caches it only together with settled
        attributes of the same version.
        """
        attr = file_map.attr
        if attr.nlink == 1 and self.current(attr.parent, mark) is not None:
            self.put_map(file_map)

    def put_map(self, file_map: FileMap, most: int = MAP_BYTES) -> bool:
        """Cache a map together with attributes of the same version, unless the map is long.

        `most` is the maximum number of its inline bytes. Returns whether the map is cached.
        """
        attr, map_weight = file_map.attr, weight(file_map)
        if len(file_map.refs) > MAP_REFS or inline_bytes(file_map) > most:
            return False
        self.grow(map_weight)
        cached = self.directories.get(attr.parent)
        cached_attr = None if cached is None else cached.attrs.get(attr.ino)
        if cached is None or cached_attr is None or cached_attr.version != attr.version:
            return False
        cached.put_map(file_map)
        return True

    # -- dropping cached answers --

    def drop_file(self, ino: Ino) -> None:
        """Drop attributes and map of a file."""
        home = self.homes.pop(ino, None)
        cached = None if home is None else self.directories.get(home)
        if cached is not None:
            cached.attrs.pop(ino, None)
            cached.drop_map(ino)

    def drop_map(self, ino: Ino) -> Ino | None:
        """Drop the map of a file, and return its directory; None if no map was cached."""
        home = self.homes.get(ino)
        cached = None if home is None else self.directories.get(home)
        if cached is None or ino not in cached.maps:
            return None
        cached.drop_map(ino)
        return home

    def drop_attr(self, ino: Ino) -> None:
        """Drop the attributes of an inode of any kind, and the map of a file."""
        self.drop_file(ino)
        cached = self.directories.get(ino)
        if cached is not None:
            cached.attr = None

    def drop_below(self, parent: Ino) -> None:
        """Drop the attributes of every inode in a directory.

        A name in it changed, and the table does not know which inode the name referred to.
        """
        self.changes.invalidate_answers()
        for cached in self.directories.values():
            if cached.attr is not None and cached.attr.parent == parent:
                cached.attr = None
        above = self.directories.get(parent)
        for ino in list(above.attrs) if above is not None else ():
            self.drop_file(ino)

    def drop_unknown(self, parent: Ino, name: bytes) -> None:
        """Drop the attributes of the inode of a changed name, even if that inode is unknown."""
        if not self.knows(parent, name):
            self.drop_below(parent)

    # -- own changes --

    def begin_change(self, *keys: Key, is_open_ended: bool = False) -> Change:
        """Register a change by this session.

        Until `end_change`, the cache serves nothing that `keys` name. If the change is open-ended,
        the session also decides no change by itself.
        """
        self.grow(_ANSWER)
        self._reserved += _ANSWER
        return self.changes.begin(self._tick, *keys, is_open_ended=is_open_ended)

    def end_change(self, change: Change) -> None:
        """Remove a change that has been answered, or whose caller no longer waits."""
        self.changes.end(change)
        self._reserved -= _ANSWER

    def changed_directory(self, change: Change, directory: Ino) -> CachedDirectory | None:
        """Return the directory's cache, or None if its lease is not older than the change."""
        cached = self.directories.get(directory)
        return None if cached is None or cached.since > change.tick else cached

    def add_created(self, change: Change, parent: Ino, name: bytes, attr: Attr) -> None:
        """Cache a new inode and its name."""
        cached = self.changed_directory(change, parent)
        if cached is None:
            return
        if change.is_latest((parent, name)):
            cached.put(name, attr.ino, attr.ino)  # a new entry's cookie is its inode's number
            if not attr.is_dir:
                self.put_attr(cached, attr)
        else:
            cached.forget(name)
        # A repeated call answers with the inode's present state, not with that of its creation.
        is_new = attr.ctime_ns == attr.atime_ns
        at_ns = attr.ctime_ns if is_new and change.is_latest(parent) else None
        cached.stamp(at_ns, int(attr.is_dir))

    def add_changed(self, change: Change, attr: Attr) -> None:
        """Cache the attributes that the store returned for a change by this session."""
        if attr.is_dir:
            cached = self.changed_directory(change, attr.ino)
            if cached is not None:
                cached.attr = attr if change.is_latest(attr.ino) else None
            return
        cached = self.changed_directory(change, attr.parent) if attr.nlink == 1 else None
        if cached is None or not change.is_latest(attr.ino):
            self.drop_file(attr.ino)
        else:
            self.put_attr(cached, attr)

    # -- directories --

    def adopt(self, directory: Ino) -> CachedDirectory:
        """Add a directory on which the session now has a lease."""
        self.grow(1)
        cached = self.directories[directory] = CachedDirectory()
        self._tick += 1
        cached.since = self._tick
        return cached

    def grow(self, count: int) -> None:
        """Make room for `count` more; evicts the least recently used directories first."""
        self._size += count
        if self._size <= self._room:
            return
        self._size = count + self._reserved + sum(map(len, self.directories.values()))
        inos: set[Ino] = set()
        evicted = []
        while self._size > self._room * 3 // 4 and self.directories:
            directory = next(iter(self.directories))
            self._size -= len(self.directories[directory])
            inos |= self.pop(directory)
            evicted.append(directory)
        if evicted:
            self.on_evict(evicted, inos)

    def pop(self, directory: Ino) -> set[Ino]:
        """Drop a directory. Return the inodes whose attributes the kernel may rely on."""
        cached = self.directories.pop(directory, None)
        if cached is None:
            return set()
        for ino in cached.attrs:
            self.homes.pop(ino, None)
        return cached.kernel_inodes

    def clear(self) -> None:
        """Drop what remains after every directory has been dropped."""
        self.homes.clear()
        self._size = self._reserved
