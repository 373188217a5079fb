"""Requests and answers of `LeaseStore.read_tree`: many directories in one call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wrkfs.types import Attr, Dentry, FileMap, Ino


@dataclass(frozen=True, slots=True)
class TreeRequest:
    """Directories to read, which the session has leased, and directories to lease.

    `entries` is the maximum number of entries in the answer. `content` is the maximum number of
    bytes of files and checksums in its maps. With `maps_only`, the answer ends with the last map
    that fits, and the first directory begins after the cookie `after`. `take` are directories to
    lease. The store also leases at most `leases` subdirectories of those that it returns.
    """

    directories: tuple[Ino, ...]
    entries: int
    content: int = 0
    maps_only: bool = False
    after: int = 0
    take: tuple[Ino, ...] = ()
    leases: int = 0


@dataclass(slots=True)
class TreeEntry:
    """An entry, whether its attributes are settled, and its map if the answer contains it."""

    dentry: Dentry
    settled: bool
    file_map: FileMap | None = None


@dataclass(slots=True)
class Listing:
    """A directory from its beginning, or from the entry after `TreeRequest.after`.

    If `settled` is True, the names and the directory's own attributes are settled. If `complete` is
    False, the directory has more entries. If `filled` is False, some maps are missing, and another
    call may return them. Maps of empty files and long maps are never in an answer.
    """

    attr: Attr
    settled: bool
    complete: bool
    filled: bool
    entries: list[TreeEntry]


@dataclass(slots=True)
class TreeAnswer:
    """The listings in the order of the request, and new leases.

    There is no listing of a missing directory, nor of one whose entries a write delegation of
    another session covers.
    """

    listings: list[Listing] = field(default_factory=list)
    leased: list[Ino] = field(default_factory=list)
