"""What is kept of leased directories, and which own changes are under way. No waiting here."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from wrkfs.types import Attr, Dentry, FileMap, Ino

Key: TypeAlias = "tuple[Ino, bytes] | Ino"
"""What a change touches: a name in a directory, or the attributes of an inode."""

MAP_REFS = 16
"""Refs of the longest map that is kept."""
MAP_BYTES = 8192
"""Bytes of small files that are kept with a map."""
NAME_BYTES = 200
"""So many of these weigh as much as a name."""


def weight(found: FileMap) -> int:
    """What a map weighs, in names."""
    return 1 + (len(found.refs) * NAME_BYTES + inline_bytes(found)) // NAME_BYTES


def inline_bytes(found: FileMap) -> int:
    """Bytes of the file that come with its map."""
    return sum(len(ref.inline) for ref in found.refs if ref.inline is not None)


@dataclass(slots=True)
class Name:
    """What a name stands for. `cookie` 0: its place in the listing is not known."""

    ino: Ino
    cookie: int = 0


@dataclass(slots=True)
class Scan:
    """A reading of a directory from its beginning. `last`: cookie up to which it got."""

    mark: Mark
    names: dict[bytes, Name] = field(default_factory=dict)
    last: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment before a question: see `Changes.mark` and `Kept.since`."""

    stamp: int
    tick: int


class Kept:
    """One leased directory: `own` are its attributes, `attrs` those of files in it, by number."""

    __slots__ = (
        "asked",
        "attrs",
        "extra",
        "maps",
        "names",
        "order",
        "own",
        "reads_at",
        "scan",
        "since",
        "told",
        "whole",
    )

    def __init__(self) -> None:
        self.since = 0
        """Tick of the table since which the lease is here; older answers are not kept."""
        self.extra = 0
        """What `maps` weigh, in names."""
        self.names: dict[bytes, Name | None] = {}
        self.order: list[tuple[int, bytes, Ino]] | None = None
        """Names in the order of the listing, from the first time that it is asked for until one
        changes."""
        self.whole = False
        self.own: Attr | None = None
        self.attrs: dict[Ino, Attr] = {}
        self.maps: dict[Ino, FileMap] = {}
        self.told: set[Ino] = set()
        self.scan: Scan | None = None
        self.asked = 0
        """Questions about single names that the database had to answer."""
        self.reads_at = 8
        """Where `asked` has to get for some entries to be read ahead."""

    def __len__(self) -> int:
        listed = 0 if self.order is None else len(self.order)
        listed += 0 if self.scan is None else len(self.scan.names)
        return len(self.names) + len(self.attrs) + len(self.told) + listed + self.extra + 1

    def put_map(self, found: FileMap) -> None:
        """A map; beside the attributes of its version."""
        self.lose_map(found.attr.ino)
        self.maps[found.attr.ino] = found
        self.extra += weight(found)

    def lose_map(self, ino: Ino) -> None:
        """It is not known any more."""
        known = self.maps.pop(ino, None)
        if known is not None:
            self.extra -= weight(known)

    def put(self, name: bytes, ino: Ino, cookie: int = 0) -> None:
        """The name stands for the inode."""
        known = self.names.get(name)
        if known is not None and known.ino == ino and not cookie:
            return
        self.names[name] = Name(ino, cookie)
        self.order = None

    def forget(self, name: bytes) -> None:
        """Nobody knows what the name stands for."""
        self.names.pop(name, None)
        self.whole = False
        self.order = None

    def take_away(self, name: bytes) -> None:
        """The name stands for nothing."""
        self.order = None
        if self.whole:
            self.names.pop(name, None)
        else:
            self.names[name] = None

    def listing(self, after: int, limit: int) -> list[tuple[int, bytes, Ino]] | None:
        """Entries behind a cookie; None when they are not all known."""
        if not self.whole:
            return None
        if self.order is None:
            there = [(name, known) for name, known in self.names.items() if known is not None]
            if not all(known.cookie for _, known in there):
                return None
            self.order = sorted((known.cookie, name, known.ino) for name, known in there)
        first = bisect_right(self.order, after, key=itemgetter(0))
        return self.order[first : first + limit]

    def stamp_own(self, at_ns: int | None, subdirectories: int = 0) -> None:
        """An own change of entries moved the directory's times; None: nobody knows when to."""
        if self.own is not None and at_ns is not None and self.own.ctime_ns <= at_ns:
            self.own = replace(
                self.own, mtime_ns=at_ns, ctime_ns=at_ns, nlink=self.own.nlink + subdirectories
            )
        else:
            self.own = None

    def scanned(self, after: int, entries: list[Dentry], mark: Mark, *, end: bool) -> None:
        """A settled part of a listing has been read; the last one makes it whole."""
        scan = self.scan
        if after == 0:
            scan = self.scan = Scan(mark)
        if scan is None or scan.mark != mark or after > scan.last:
            self.scan = None
            return
        for entry in entries:
            scan.names[entry.name] = Name(entry.attr.ino, entry.cookie)
        if entries:
            scan.last = max(scan.last, entries[-1].cookie)
        if end and scan.names:
            self.names = dict(scan.names)
            self.order = None
            self.whole = True
            self.scan = None


@dataclass(eq=False, slots=True)
class Change:
    """One own change under way; `clashed`: keys that another one touched at the same time."""

    keys: tuple[Key, ...]
    tick: int
    clashed: set[Key] = field(default_factory=set)

    def clean(self, key: Key) -> bool:
        """Whether its answer is the last word about a key."""
        return key not in self.clashed


class Changes:
    """Own changes under way. What is read meanwhile is not kept: it may be from before them."""

    def __init__(self) -> None:
        self._flying: dict[Key, list[Change]] = {}
        self._directories: dict[Ino, int] = {}
        self._busy = 0
        self._stamp = 0

    @property
    def mark(self) -> int | None:
        """To be taken before a question and compared after it; None: changes are under way."""
        return None if self._busy else self._stamp

    def begin(self, tick: int, *keys: Key) -> Change:
        """A change is about to be sent; `tick`: leases that are newer do not cover its answer."""
        change = Change(keys, tick)
        self._busy += 1
        self._stamp += 1
        for key in keys:
            others = self._flying.setdefault(key, [])
            for other in others:
                other.clashed.add(key)
                change.clashed.add(key)
            others.append(change)
            if isinstance(key, tuple):
                self._directories[key[0]] = self._directories.get(key[0], 0) + 1
        return change

    def end(self, change: Change) -> None:
        """It has been answered, or nobody waits for it any more."""
        self._busy -= 1
        self._stamp += 1
        for key in change.keys:
            others = self._flying[key]
            others.remove(change)
            if not others:
                del self._flying[key]
            if isinstance(key, tuple):
                left = self._directories[key[0]] - 1
                if left:
                    self._directories[key[0]] = left
                else:
                    del self._directories[key[0]]

    def disturb(self) -> None:
        """What is being read may be from before something that was heard of now."""
        self._stamp += 1

    def confuse(self) -> None:
        """No answer of those under way is the last word about an inode: its name may be gone."""
        for key, changes in self._flying.items():
            if not isinstance(key, tuple):
                for change in changes:
                    change.clashed.add(key)

    def touches(self, key: Key) -> bool:
        """Whether a change of a name or inode is under way."""
        return key in self._flying

    def touches_names(self, directory: Ino) -> bool:
        """Whether a change of any name in a directory is under way."""
        return directory in self._directories
