"""The cache of one leased directory, and this session's changes under way. Nothing here waits."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from wrkfs.types import Attr, Dentry, FileMap, Ino

Key: TypeAlias = "tuple[Ino, bytes] | Ino"
"""An object of a change: a name in a directory, or the attributes of an inode."""

MAP_REFS = 16
"""Maximum number of refs in a cached map."""
MAP_BYTES = 8192
"""Maximum number of inline bytes that are cached with a map."""
NAME_BYTES = 200
"""Bytes of a map that count as much as one name."""


def weight(file_map: FileMap) -> int:
    """Return the weight of a map, in names."""
    return 1 + (len(file_map.refs) * NAME_BYTES + inline_bytes(file_map)) // NAME_BYTES


def inline_bytes(file_map: FileMap) -> int:
    """Return the number of the file's bytes that the map itself contains."""
    return sum(len(ref.inline) for ref in file_map.refs if ref.inline is not None)


@dataclass(slots=True)
class Name:
    """The inode of a name. `cookie` 0: the position of the name in the listing is unknown."""

    ino: Ino
    cookie: int = 0


@dataclass(slots=True)
class Scan:
    """A read of a directory from its beginning, up to the entry with cookie `last`."""

    mark: Mark
    names: dict[bytes, Name] = field(default_factory=dict)
    last: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """The moment before a query: see `Changes.mark` and `CachedDirectory.since`."""

    stamp: int
    tick: int


class CachedDirectory:
    """One leased directory: its own attributes, the names in it, attributes and maps of its files.

    `attrs` and `maps` are by inode number and contain files only; a directory's attributes are in
    the `attr` of its own cache, because its own lease covers them.
    """

    __slots__ = (
        "attr",
        "attrs",
        "complete",
        "delegated",
        "granted_after",
        "kernel_inodes",
        "map_weight",
        "maps",
        "misses",
        "names",
        "order",
        "prefetch_at",
        "scan",
        "since",
    )

    def __init__(self) -> None:
        self.since = 0
        """Tick of the table at which the lease began. Answers to older queries are not cached."""
        self.map_weight = 0
        """Total weight of `maps`, in names."""
        self.names: dict[bytes, Name | None] = {}
        """Known names; None: the name does not exist."""
        self.order: list[tuple[int, bytes, Ino]] | None = None
        """Names in the order of the listing. The first listing builds this list; a change of a name
        discards it."""
        self.complete = False
        """True if `names` contains every name of the directory."""
        self.delegated = False
        """True if the session also decides changes of the directory (`wrkfs.meta.delegations`)."""
        self.granted_after = -1
        """Number of batches that the session had sent when it received the delegation."""
        self.attr: Attr | None = None
        self.attrs: dict[Ino, Attr] = {}
        self.maps: dict[Ino, FileMap] = {}
        self.kernel_inodes: set[Ino] = set()
        """Inodes whose attributes a kernel may rely on under this lease."""
        self.scan: Scan | None = None
        self.misses = 0
        """Lookups of single names that the database had to answer."""
        self.prefetch_at = 2
        """Number of `misses` that triggers the next read-ahead of entries."""

    def __len__(self) -> int:
        listed = 0 if self.order is None else len(self.order)
        listed += 0 if self.scan is None else len(self.scan.names)
        relied_on = len(self.kernel_inodes)
        return len(self.names) + len(self.attrs) + relied_on + listed + self.map_weight + 1

    def put_map(self, file_map: FileMap) -> None:
        """Cache a map; the attributes of the same version must be cached too."""
        self.drop_map(file_map.attr.ino)
        self.maps[file_map.attr.ino] = file_map
        self.map_weight += weight(file_map)

    def drop_map(self, ino: Ino) -> None:
        """Drop the map of a file."""
        file_map = self.maps.pop(ino, None)
        if file_map is not None:
            self.map_weight -= weight(file_map)

    def put(self, name: bytes, ino: Ino, cookie: int = 0) -> None:
        """Cache that the name refers to the inode."""
        entry = self.names.get(name)
        if entry is not None and entry.ino == ino and not cookie:
            return
        self.names[name] = Name(ino, cookie)
        self.order = None

    def put_empty(self) -> None:
        """Cache that the directory has no names."""
        self.names = {}
        self.order = None
        self.complete = True

    def put_absent(self, name: bytes) -> None:
        """Cache that the name does not exist."""
        self.order = None
        if self.complete:
            self.names.pop(name, None)
        else:
            self.names[name] = None

    def forget(self, name: bytes) -> None:
        """Drop the cached data of a name, which may exist or not."""
        self.names.pop(name, None)
        self.complete = False
        self.order = None

    def listing(self, after: int, limit: int) -> list[tuple[int, bytes, Ino]] | None:
        """Return entries beyond a cookie; None if the cache does not know all of them."""
        if not self.complete:
            return None
        if self.order is None:
            entries = [(name, entry) for name, entry in self.names.items() if entry is not None]
            if not all(entry.cookie for _, entry in entries):
                return None
            self.order = sorted((entry.cookie, name, entry.ino) for name, entry in entries)
        first = bisect_right(self.order, after, key=itemgetter(0))
        return self.order[first : first + limit]

    def position(self, ino: Ino) -> tuple[int, Ino | None]:
        """Return the cookie of an inode's name, and the inode of the next name in the cache.

        Returns 0 and None if the cache does not know the cookie.
        """
        entries = self.names.values()
        cookie = next((entry.cookie for entry in entries if entry and entry.ino == ino), 0)
        if not cookie:
            return 0, None
        later = (entry for entry in entries if entry and entry.cookie > cookie)
        following = min(later, key=attrgetter("cookie"), default=None)
        return cookie, None if following is None else following.ino

    def stamp(self, at_ns: int | None, subdirectories: int = 0) -> None:
        """Record that a change of entries by this session set the directory's times to `at_ns`.

        `subdirectories` is the change in the number of subdirectories. If `at_ns` is None, the
        cache drops the attributes.
        """
        if self.attr is not None and at_ns is not None and self.attr.ctime_ns <= at_ns:
            self.attr = replace(
                self.attr, mtime_ns=at_ns, ctime_ns=at_ns, nlink=self.attr.nlink + subdirectories
            )
        else:
            self.attr = None

    def add_scan(self, after: int, entries: list[Dentry], mark: Mark, *, end: bool) -> None:
        """Cache a settled part of a listing; the last part makes the directory complete."""
        scan = self.scan
        if after == 0:
            scan = self.scan = Scan(mark)
        if scan is None or scan.mark.stamp != mark.stamp or after > scan.last:
            self.scan = None
            return
        for entry in entries:
            scan.names[entry.name] = Name(entry.attr.ino, entry.cookie)
        if entries:
            scan.last = max(scan.last, entries[-1].cookie)
        if end and scan.names:
            self.names = dict(scan.names)
            self.order = None
            self.complete = True
            self.scan = None


@dataclass(eq=False, slots=True)
class Change:
    """One own change under way.

    `tick` is the tick at which it was sent. `is_open_ended` says that it may also change inodes
    that are not in `keys`: the cache does not know which ones. `conflicts` are the keys for which
    its answer may not be the latest state, because another change touched them at the same time.
    """

    keys: tuple[Key, ...]
    tick: int
    is_open_ended: bool = False
    conflicts: set[Key] = field(default_factory=set)

    def is_latest(self, key: Key) -> bool:
        """Return True if the answer of this change is the latest state of a key."""
        return key not in self.conflicts


class Changes:
    """Own changes under way. Answers read meanwhile are not cached: they may predate a change."""

    def __init__(self) -> None:
        self._flying: dict[Key, list[Change]] = {}
        self._directories: dict[Ino, int] = {}
        self._busy = 0
        self._open_ended = 0
        self._stamp = 0

    @property
    def mark(self) -> int | None:
        """Stamp to take before a query and to compare afterwards; None during a change."""
        return None if self._busy else self._stamp

    def begin(self, tick: int, *keys: Key, is_open_ended: bool = False) -> Change:
        """Register a change that is about to be sent; newer leases do not cover its answer."""
        change = Change(keys, tick, is_open_ended)
        self._busy += 1
        self._open_ended += is_open_ended
        self._stamp += 1
        for key in keys:
            others = self._flying.setdefault(key, [])
            for other in others:
                other.conflicts.add(key)
                change.conflicts.add(key)
            others.append(change)
            if isinstance(key, tuple):
                self._directories[key[0]] = self._directories.get(key[0], 0) + 1
        return change

    def end(self, change: Change) -> None:
        """Remove a change that has been answered, or whose caller no longer waits."""
        self._busy -= 1
        self._open_ended -= change.is_open_ended
        self._stamp += 1
        for key in change.keys:
            others = self._flying[key]
            others.remove(change)
            if not others:
                del self._flying[key]
            if isinstance(key, tuple):
                remaining = self._directories[key[0]] - 1
                if remaining:
                    self._directories[key[0]] = remaining
                else:
                    del self._directories[key[0]]

    def invalidate_reads(self) -> None:
        """Keep answers to queries in progress out of the cache: they may be outdated."""
        self._stamp += 1

    def invalidate_answers(self) -> None:
        """Keep answers of changes under way from updating any inode: its name may be gone."""
        for key, changes in self._flying.items():
            if not isinstance(key, tuple):
                for change in changes:
                    change.conflicts.add(key)

    def touches(self, key: Key) -> bool:
        """Return True if a change of this name or inode is under way."""
        return key in self._flying

    def may_touch(self, ino: Ino) -> bool:
        """Return True if a change under way may affect the attributes of an inode."""
        return self._open_ended > 0 or ino in self._flying

    def touches_names(self, directory: Ino) -> bool:
        """Return True if a change of any name in the directory is under way."""
        return directory in self._directories
