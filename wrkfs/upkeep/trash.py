"""The trash of a volume: it keeps removed files for a while and can restore them.

The trash has a separate entry for each removed directory and file. To restore a directory means to
restore its name, and then the entries that were removed from it. To restore a file also means to
restore the directories above it. Nothing is ever replaced.

A file with several names has an entry for each removed name. All these entries refer to one inode.
They are restored after everything else, as links to it.

A removal changes the mtime of its directory, and the entry stores the mtime before the removal. So
a series of removals without another change in between can be traced back: the directory is restored
with the mtime before the series.
"""

from __future__ import annotations

import contextlib
import os
import stat
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from wrkfs.errors import Corrupt, Exists, NotDirectory, NotFound, TooManyLinks
from wrkfs.layout import PATH_MAX
from wrkfs.types import ROOT_INO, Ino, SetAttr

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from wrkfs.fs import Filesystem
    from wrkfs.types import TrashEntry, TrashPosition

SHARE = 4
"""The trash uses at most 1/SHARE of the quota; the oldest entry is deleted first."""
ROWS = 250_000
"""Maximum number of entries, with or without quota, and of linked entries."""
VERSIONS = 32
"""Maximum number of files of the same name and directory. A file that a program replaces every
second (the journal of a database) must not evict files that users removed."""
PAGE = 1000
SCAN = 5000
"""Maximum number of entries that one call of `newest` examines."""
DEPTH = PATH_MAX // 2
"""Maximum number of directories above an entry. More means a cycle in the rows."""


EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class RemovedEntry:
    """An entry with its former path from the root, without a leading slash.

    `path` is None if a directory above it was deleted from the trash.
    """

    entry: TrashEntry
    path: bytes | None

    @property
    def is_dir(self) -> bool:
        """True for a directory. Its contents were removed with it, or before it."""
        return stat.S_ISDIR(self.entry.mode)


@dataclass(frozen=True, slots=True)
class Page:
    """A part of the list of removed entries, the newest first.

    `next` is the position after which the list goes on; None: this is its end. With `next`, a page
    may have fewer entries than requested, or none.
    """

    entries: list[RemovedEntry]
    next: TrashPosition | None


@dataclass(slots=True)
class RestoreResult:
    """The result of `restore`: path of the entry, and the number of files and directories.

    A file counts once for each of its names. `missing` maps paths below the entry that stay in the
    trash to the reason. `earlier` are paths of linked entries that stay there too, because their
    names were removed earlier than the tree, and their files were restored under other names.
    """

    path: bytes
    files: int = 0
    directories: int = 0
    missing: dict[bytes, str] = field(default_factory=dict)
    earlier: list[bytes] = field(default_factory=list)


def _no_progress(_count: int) -> None:
    """Do nothing."""


class _Paths:
    """Paths of directories, including those in the trash. Each lookup is cached."""

    def __init__(self, fs: Filesystem) -> None:
        self._fs = fs
        self._paths: dict[Ino, bytes | None] = {ROOT_INO: b""}

    async def of(self, ino: Ino) -> bytes | None:
        """Return the path of a directory, None if unknown. Raises Corrupt for a cycle."""
        steps: list[tuple[Ino, bytes]] = []
        while ino not in self._paths:
            place = await self._fs.stores.upkeep.place(ino)
            if place is None:
                self._paths[ino] = None
                break
            if len(steps) > DEPTH:
                raise Corrupt("the directories above a trash entry are a cycle; run: wrkfs fsck")
            steps.append((ino, place.name))
            ino = place.parent
        path = self._paths[ino]
        for below, name in reversed(steps):
            path = None if path is None else (path + b"/" + name if path else name)
            self._paths[below] = path
        return path


async def entries(fs: Filesystem) -> AsyncIterator[RemovedEntry]:
    """Yield all entries of the trash, the oldest first."""
    paths = _Paths(fs)
    after: TrashEntry | None = None
    while page := await fs.stores.upkeep.list_trash(after, PAGE):
        for entry in page:
            yield RemovedEntry(entry, _join(await paths.of(entry.parent), entry.name))
        after = page[-1]


async def newest(
    fs: Filesystem, before: TrashPosition | None, limit: int, *, below: bytes = b""
) -> Page:
    """Return up to `limit` entries that were removed before a position (None: all).

    With `below`, returns only entries at or below this path, without leading and trailing slash.
    One call examines at most SCAN entries. `limit` must be 1 to SCAN.
    """
    paths = _Paths(fs)
    matches: list[RemovedEntry] = []
    examined, position = 0, before
    while examined < SCAN:
        count = min(PAGE, SCAN - examined, SCAN if below else limit - len(matches))
        page = await fs.stores.upkeep.list_trash_back(position, count)
        for entry in page:
            examined, position = examined + 1, entry.position
            removed = RemovedEntry(entry, _join(await paths.of(entry.parent), entry.name))
            if below and not _is_below(removed.path, below):
                continue
            matches.append(removed)
            if len(matches) == limit:
                return Page(matches, position)
        if len(page) < count:
            return Page(matches, None)
    return Page(matches, position)


def _join(directory: bytes | None, name: bytes) -> bytes | None:
    """Return the path of a name in a directory, None if that of the directory is unknown."""
    return name if directory == b"" else directory and directory + b"/" + name


def _is_below(path: bytes | None, top: bytes) -> bool:
    return path is not None and (path + b"/").startswith(top + b"/")


async def restore(
    fs: Filesystem,
    what: bytes | Ino,
    *,
    to: bytes | None = None,
    progress: Callable[[int], None] = _no_progress,
) -> RestoreResult:
    """Restore an entry: the one of an inode number, or the newest one that had a path.

    Restores it at its former path, with missing directories, or at the path `to`, whose directory
    must exist. A directory is restored with the entries that were removed from it, the newest of
    each name. If something exists at such a path, the entry stays in the trash. Calls
    `progress(number of examined entries)`.

    Raises NotFound (no such entry), Exists (something exists at the path), NotDirectory,
    QuotaExceeded, TooManyLinks. After an error, the entries restored so far stay restored.
    """
    top = await _choose(fs, what)
    path = top.path if to is None else to.strip(b"/")
    if path is None:
        raise NotFound("its former directory is unknown; give a path to restore it to")
    # The list may be long. Most restores need few of its entries.
    related = [removed async for removed in entries(fs) if _is_related(removed, top)]
    tree = _Tree(fs, related, progress)
    try:
        directory = await tree.directory(path.split(b"/")[:-1], create=to is None)
        return await tree.restore(top, directory, path)
    finally:
        await tree.set_times()


class _Tree:
    """One call of `restore`. One task; nothing interleaves."""

    def __init__(
        self, fs: Filesystem, all_entries: list[RemovedEntry], progress: Callable[[int], None]
    ) -> None:
        self._fs = fs
        self._all_entries = all_entries
        self._progress = progress
        self._examined = 0
        newest = {(removed.entry.parent, removed.entry.name): removed for removed in all_entries}
        self._below: dict[Ino, list[RemovedEntry]] = defaultdict(list)
        for removed in newest.values():
            self._below[removed.entry.parent].append(removed)
        self._removals: dict[Ino, dict[int, int]] = defaultdict(dict)
        """For each directory: its mtime after a removal, and the mtime before it."""
        for removed in all_entries:
            mtime_before = removed.entry.dir_mtime_ns
            if mtime_before is not None:
                self._removals[removed.entry.parent][_nanoseconds(removed.entry)] = mtime_before
        self._mtimes: dict[Ino, int] = {}
        """Restored directories, and their mtimes before their last series of removals."""
        self._removal_times: dict[Ino, int] = {}
        """Restored directories of the tree, and the times of their removals."""

    async def restore(self, top: RemovedEntry, directory: Ino, path: bytes) -> RestoreResult:
        """Restore an entry at a path, and the entries that were removed from it."""
        result = RestoreResult(path)
        pending = [(top, directory, path)]
        links: list[tuple[RemovedEntry, Ino, bytes]] = []
        restored: set[Ino] = set()
        while pending:
            removed, directory, path = pending.pop()
            if removed.entry.linked and removed is not top:
                links.append((removed, directory, path))
                continue
            ino = await self._restore_name(removed, directory, path, result, must=removed is top)
            if ino is None:
                continue
            restored.add(ino)
            children = self._below.pop(removed.entry.ino, ())
            pending.extend((child, ino, path + b"/" + child.entry.name) for child in children)
        changes = sorted(self._mtimes[ino] for ino in self._removal_times)
        for removed, directory, path in links:
            entry = removed.entry
            if (entry.nlink > 0 or entry.ino in restored) and self._is_earlier(entry, changes):
                result.earlier.append(path)
                continue
            ino = await self._restore_name(removed, directory, path, result, must=False)
            if ino is not None:
                restored.add(ino)
        return result

    async def directory(self, steps: list[bytes], *, create: bool) -> Ino:
        """Return the directory of a path; with `create`, restore missing ones from the trash."""
        parent, path = ROOT_INO, b""
        for step in steps:
            path = path + b"/" + step if path else step
            try:
                attr = await self._fs.lookup(parent, step)
            except NotFound:
                matches = [one for one in self._all_entries if one.path == path and one.is_dir]
                if not create or not matches:
                    raise NotFound(
                        f"the directory {_shown(path)} does not exist; create it, or restore to "
                        "another path"
                    ) from None
                attr = await self._fs.restore(matches[-1].entry.ino, parent, step)
                self._note_mtime(matches[-1])
            if not attr.is_dir:
                raise NotDirectory(f"{_shown(path)} is not a directory; give another path")
            parent = attr.ino
        return parent

    async def set_times(self) -> None:
        """Set the mtimes of the restored directories, which the restored entries have changed."""
        mtimes, self._mtimes = self._mtimes, {}
        for ino, mtime in mtimes.items():
            # Another session may have removed it again.
            with contextlib.suppress(NotFound):
                await self._fs.setattr(ino, SetAttr(mtime_ns=mtime))

    async def _restore_name(
        self,
        removed: RemovedEntry,
        directory: Ino,
        path: bytes,
        result: RestoreResult,
        *,
        must: bool,
    ) -> Ino | None:
        """Give one entry its name; return its inode, or that of an existing directory.

        After an error, records the path as missing and returns None. With `must`, raises the error.
        """
        self._examined += 1
        self._progress(self._examined)
        entry, name = removed.entry, path.rpartition(b"/")[2]
        link = (entry.parent, entry.name) if entry.linked else None
        try:
            attr = await self._fs.restore(entry.ino, directory, name, link)
        except Exists:
            existing = await self._fs.lookup(directory, name)
            if removed.is_dir and existing.is_dir:
                return existing.ino
            if must:
                raise
            result.missing[path] = "the path already exists"
            return None
        except (NotFound, TooManyLinks) as error:
            if must:
                raise
            absent = isinstance(error, NotFound)
            result.missing[path] = (
                "it is no longer in the trash" if absent else "its file has too many names"
            )
            return None
        if removed.is_dir:
            result.directories += 1
            self._note_mtime(removed)
            self._removal_times[entry.ino] = _nanoseconds(entry)
        else:
            result.files += 1
        return attr.ino

    def _is_earlier(self, entry: TrashEntry, changes: list[int]) -> bool:
        """Return True if the tree was still in use when this name was removed.

        Then something in the tree changed between that moment and the removal of the name's
        directory. Programs that link a file to its place and unlink the old name leave such
        entries: git does this for each object.
        """
        later = bisect_right(changes, _nanoseconds(entry))
        end = self._removal_times.get(entry.parent)
        return later < len(changes) and (end is None or changes[later] < end)

    def _note_mtime(self, removed: RemovedEntry) -> None:
        entry = removed.entry
        removals, mtime = self._removals[entry.ino], entry.mtime_ns
        while mtime in removals:
            mtime = removals.pop(mtime)
        self._mtimes[entry.ino] = mtime


async def empty(fs: Filesystem, *, progress: Callable[[int], None] = _no_progress) -> int:
    """Free all current entries of the trash; return their number.

    Calls `progress(number of entries)` after each step.
    """
    return await _purge(fs, datetime.now(UTC), progress)


async def tidy(fs: Filesystem, *, progress: Callable[[int], None] = _no_progress) -> int:
    """Free entries that are too old or exceed a limit; return their number.

    Calls `progress(number of entries)` after each step.
    """
    upkeep = fs.stores.upkeep
    total = await _purge(fs, None, progress)
    while count := await upkeep.thin_trash(VERSIONS, PAGE):
        total += count
        progress(total)
    while count := await upkeep.thin_links(SHARE, ROWS, PAGE):
        total += count
        progress(total)
    until = await upkeep.trash_excess(SHARE, ROWS)
    return total if until is None else await _purge(fs, until, progress, total)


async def _purge(
    fs: Filesystem, until: datetime | None, progress: Callable[[int], None], total: int = 0
) -> int:
    while count := await fs.stores.upkeep.purge_trash(until, PAGE):
        total += count
        progress(total)
    return total


def _shown(path: bytes) -> str:
    """Return a path for an error."""
    return repr(os.fsdecode(path))


async def _choose(fs: Filesystem, what: bytes | Ino) -> RemovedEntry:
    """Return the newest entry of a path or number. Raises NotFound."""
    path = what.strip(b"/") if isinstance(what, bytes) else None
    choice: RemovedEntry | None = None
    async for removed in entries(fs):
        if removed.path == path if path is not None else removed.entry.ino == what:
            choice = removed
    if choice is None:
        raise NotFound("the trash has no such entry")
    return choice


def _is_related(removed: RemovedEntry, top: RemovedEntry) -> bool:
    """Return whether an entry may have a part in restoring `top`.

    These are the entries below it, the directories above it, and, for the times of these, the other
    entries that were removed from them.
    """
    if top.path is None or removed.path is None:
        return top.path == removed.path
    directory = removed.path.rpartition(b"/")[0]
    return (
        _is_below(removed.path, top.path)
        or _is_below(top.path, removed.path)
        or (directory != b"" and _is_below(top.path, directory))
    )


def _nanoseconds(entry: TrashEntry) -> int:
    """Return the time of the removal, in the form of the directory's mtime."""
    return (entry.deleted_at - EPOCH) // timedelta(microseconds=1) * 1000
