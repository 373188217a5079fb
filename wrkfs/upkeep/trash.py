"""The trash of a volume: what was removed, for a while, and how it comes back.

The trash has each directory and each file by itself. So to restore a directory is to give it its
name again and to restore what was removed from it; to restore a file is to restore the directories
that led to it as well. Nothing is ever replaced.

A file with several names has an entry for each name that was removed; all entries lead to the one
inode. The names come back after everything else, as links to it.

A removal moves the mtime of its directory, and the entry tells the mtime before. The removals that
followed one another without another change in between are the last run of a directory: it comes
back with the mtime from before them.
"""

from __future__ import annotations

import contextlib
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
    from wrkfs.types import TrashEntry

SHARE = 4
"""The trash keeps at most this part (a quarter) of the quota; the oldest goes first."""
ROWS = 250_000
"""Most entries, with or without quota; linked entries are counted by themselves."""
VERSIONS = 32
"""Most files of the same name and directory: one that is replaced every second (the journal of a
database) does not push out what people removed."""
PAGE = 1000
DEPTH = PATH_MAX // 2
"""Most directories above an entry; more are a cycle in the rows."""


EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class Removed:
    """An entry with the path it had, from the root, without a slash in front.

    `path` is None when a directory above it is not even in the trash any more.
    """

    entry: TrashEntry
    path: bytes | None

    @property
    def is_dir(self) -> bool:
        """True for a directory: it was removed with what was in it, or after it."""
        return stat.S_ISDIR(self.entry.mode)


@dataclass(slots=True)
class Restored:
    """What `restore` brought back: how many files and directories, and where the first stands.

    A file counts once for each of its names. `missing` are paths below it that stay in the trash,
    each with the reason. `earlier` are paths of linked entries that stay there too: the names had
    been removed before the tree was, and their files came back under others.
    """

    path: bytes
    files: int = 0
    directories: int = 0
    missing: dict[bytes, str] = field(default_factory=dict)
    earlier: list[bytes] = field(default_factory=list)


def _silent(_done: int) -> None:
    """No progress is shown."""


class _Paths:
    """Paths of directories, alive or in the trash, asked for once each."""

    def __init__(self, fs: Filesystem) -> None:
        self._fs = fs
        self._known: dict[Ino, bytes | None] = {ROOT_INO: b""}

    async def of(self, ino: Ino) -> bytes | None:
        """The path of a directory, None when nobody knows it. Corrupt for a cycle."""
        steps: list[tuple[Ino, bytes]] = []
        while ino not in self._known:
            place = await self._fs.stores.upkeep.place(ino)
            if place is None:
                self._known[ino] = None
                break
            if len(steps) > DEPTH:
                raise Corrupt("the directories above an entry of the trash")
            steps.append((ino, place.name))
            ino = place.parent
        path = self._known[ino]
        for below, name in reversed(steps):
            path = None if path is None else (path + b"/" + name if path else name)
            self._known[below] = path
        return path


async def entries(fs: Filesystem) -> AsyncIterator[Removed]:
    """Everything in the trash, the oldest first."""
    paths = _Paths(fs)
    after: TrashEntry | None = None
    while page := await fs.stores.upkeep.list_trash(after, PAGE):
        for entry in page:
            above = await paths.of(entry.parent)
            path = entry.name if above == b"" else above and above + b"/" + entry.name
            yield Removed(entry, path)
        after = page[-1]


async def restore(
    fs: Filesystem,
    what: bytes | Ino,
    *,
    to: bytes | None = None,
    progress: Callable[[int], None] = _silent,
) -> Restored:
    """Brings back an entry: the one of that number, or the newest that had that path.

    It comes back where it was, missing directories made again, or at the path `to`, whose directory
    must exist. A directory brings with it what was removed from it, of each name the newest; what
    stands in the way of these stays, and they stay in the trash. `progress` is told the number of
    entries that were looked at.

    Raises NotFound (nothing like that in the trash), Exists (something stands there), NotDirectory,
    QuotaExceeded, TooManyLinks: what was restored before stays restored.
    """
    everything = [removed async for removed in entries(fs)]
    chosen = _choose(everything, what)
    path = chosen.path if to is None else to.strip(b"/")
    if path is None:
        raise NotFound("the directory it was in is not known any more; say where to restore it to")
    tree = _Tree(fs, everything, progress)
    try:
        directory = await tree.directory(path.split(b"/")[:-1], make=to is None)
        return await tree.restore(chosen, directory, path)
    finally:
        await tree.set_times()


class _Tree:
    """One call of `restore`. One task; nothing interleaves."""

    def __init__(
        self, fs: Filesystem, everything: list[Removed], progress: Callable[[int], None]
    ) -> None:
        self._fs = fs
        self._everything = everything
        self._progress = progress
        self._looked_at = 0
        newest = {(one.entry.parent, one.entry.name): one for one in everything}
        self._below: dict[Ino, list[Removed]] = defaultdict(list)
        for removed in newest.values():
            self._below[removed.entry.parent].append(removed)
        self._removals: dict[Ino, dict[int, int]] = defaultdict(dict)
        """Of each directory: its mtime after a removal, and the one before."""
        for removed in everything:
            before = removed.entry.dir_mtime_ns
            if before is not None:
                self._removals[removed.entry.parent][_nanoseconds(removed.entry)] = before
        self._times: dict[Ino, int] = {}
        """Directories that came back, and their mtimes before their last runs of removals."""
        self._ends: dict[Ino, int] = {}
        """Directories of the tree, and when they were removed."""

    async def restore(self, chosen: Removed, directory: Ino, path: bytes) -> Restored:
        """The entry at that path, and what was removed from it."""
        done = Restored(path)
        waiting = [(chosen, directory, path)]
        links: list[tuple[Removed, Ino, bytes]] = []
        back: set[Ino] = set()
        while waiting:
            removed, directory, path = waiting.pop()
            if removed.entry.linked and removed is not chosen:
                links.append((removed, directory, path))
                continue
            ino = await self._bring(removed, directory, path, done, must=removed is chosen)
            if ino is None:
                continue
            back.add(ino)
            inside = self._below.pop(removed.entry.ino, ())
            waiting.extend((one, ino, path + b"/" + one.entry.name) for one in inside)
        changes = sorted(self._times[ino] for ino in self._ends)
        for removed, directory, path in links:
            entry = removed.entry
            if (entry.nlink > 0 or entry.ino in back) and self._is_earlier(entry, changes):
                done.earlier.append(path)
                continue
            ino = await self._bring(removed, directory, path, done, must=False)
            if ino is not None:
                back.add(ino)
        return done

    async def directory(self, steps: list[bytes], *, make: bool) -> Ino:
        """The directory of a path; with `make` those that are missing come back from the trash."""
        at, path = ROOT_INO, b""
        for step in steps:
            path = path + b"/" + step if path else step
            try:
                attr = await self._fs.lookup(at, step)
            except NotFound:
                gone = [one for one in self._everything if one.path == path and one.is_dir]
                if not make or not gone:
                    raise
                attr = await self._fs.restore(gone[-1].entry.ino, at, step)
                self._note_time(gone[-1])
            if not attr.is_dir:
                raise NotDirectory(f"{path!r} is in the way")
            at = attr.ino
        return at

    async def set_times(self) -> None:
        """Gives the directories that came back their mtimes again: their entries moved them."""
        times, self._times = self._times, {}
        for ino, mtime in times.items():
            # Somebody may have removed it again.
            with contextlib.suppress(NotFound):
                await self._fs.setattr(ino, SetAttr(mtime_ns=mtime))

    async def _bring(
        self, removed: Removed, directory: Ino, path: bytes, done: Restored, *, must: bool
    ) -> Ino | None:
        """Gives one entry its name; the inode, also of a directory that stands there already.

        None: it is missing, and `done` says so. With `must` the error is raised instead.
        """
        self._looked_at += 1
        self._progress(self._looked_at)
        entry, name = removed.entry, path.rpartition(b"/")[2]
        link = (entry.parent, entry.name) if entry.linked else None
        try:
            attr = await self._fs.restore(entry.ino, directory, name, link)
        except Exists:
            there = await self._fs.lookup(directory, name)
            if removed.is_dir and there.is_dir:
                return there.ino
            if must:
                raise
            done.missing[path] = "something stands there"
            return None
        except (NotFound, TooManyLinks) as error:
            if must:
                raise
            gone = isinstance(error, NotFound)
            done.missing[path] = "it has left the trash" if gone else "its file has too many names"
            return None
        if removed.is_dir:
            done.directories += 1
            self._note_time(removed)
            self._ends[entry.ino] = _nanoseconds(entry)
        else:
            done.files += 1
        return attr.ino

    def _is_earlier(self, entry: TrashEntry, changes: list[int]) -> bool:
        """Whether the tree was still in use when this name was removed.

        Then something in the tree changed between that and the end of the name's directory.
        Programs that link a file to its place and unlink the old name leave such entries: git does
        so for each object.
        """
        later = bisect_right(changes, _nanoseconds(entry))
        end = self._ends.get(entry.parent)
        return later < len(changes) and (end is None or changes[later] < end)

    def _note_time(self, removed: Removed) -> None:
        entry = removed.entry
        removals, mtime = self._removals[entry.ino], entry.mtime_ns
        while mtime in removals:
            mtime = removals.pop(mtime)
        self._times[entry.ino] = mtime


async def empty(fs: Filesystem, *, progress: Callable[[int], None] = _silent) -> int:
    """Frees everything that is in the trash now; the number of entries.

    `progress` is told it after each step.
    """
    return await _purge(fs, datetime.now(UTC), progress)


async def tidy(fs: Filesystem, *, progress: Callable[[int], None] = _silent) -> int:
    """Frees what has been kept long enough, or is too much; the number of entries.

    `progress` is told it after each step.
    """
    upkeep = fs.stores.upkeep
    done = await _purge(fs, None, progress)
    while count := await upkeep.thin_trash(VERSIONS, PAGE):
        done += count
        progress(done)
    while count := await upkeep.thin_links(SHARE, ROWS, PAGE):
        done += count
        progress(done)
    until = await upkeep.trash_excess(SHARE, ROWS)
    return done if until is None else await _purge(fs, until, progress, done)


async def _purge(
    fs: Filesystem, until: datetime | None, progress: Callable[[int], None], done: int = 0
) -> int:
    while count := await fs.stores.upkeep.purge_trash(until, PAGE):
        done += count
        progress(done)
    return done


def _choose(everything: list[Removed], what: bytes | Ino) -> Removed:
    path = what.strip(b"/") if isinstance(what, bytes) else None
    for removed in reversed(everything):
        if removed.path == path if path is not None else removed.entry.ino == what:
            return removed
    raise NotFound("nothing like that is in the trash")


def _nanoseconds(entry: TrashEntry) -> int:
    """When it was removed, as the mtime of its directory tells it."""
    return (entry.deleted_at - EPOCH) // timedelta(microseconds=1) * 1000
