"""The trash of a volume: what was removed, for a while, and how it comes back.

A directory is in the trash only as the place of what was in it. So to restore a directory is to
make it again and to restore what was removed from it; to restore a file is to make again the
directories that led to it. Nothing is ever replaced.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from wrkfs.errors import Corrupt, Exists, NotDirectory, NotFound
from wrkfs.layout import PATH_MAX
from wrkfs.types import ROOT_INO, Ino

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from wrkfs.fs import Filesystem
    from wrkfs.types import TrashEntry

SHARE = 4
"""The trash keeps at most this part (a quarter) of the quota; the oldest goes first."""
ROWS = 250_000
"""Most entries, with or without quota."""
VERSIONS = 32
"""Most files of the same name and directory: one that is replaced every second (the journal of a
database) does not push out what people removed."""
PAGE = 1000
DEPTH = PATH_MAX // 2
"""Most directories above an entry; more are a cycle in the rows."""


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
    """What `restore` brought back: how many files, and where the first of them stands."""

    path: bytes
    files: int = 0


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
            place = await self._fs.stores.meta.place(ino)
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
    while page := await fs.stores.meta.list_trash(after, PAGE):
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
    QuotaExceeded: what was restored before stays restored.
    """
    everything = [removed async for removed in entries(fs)]
    chosen = _choose(everything, what)
    path = chosen.path if to is None else to.strip(b"/")
    if path is None:
        raise NotFound("the directory it was in is not known any more; say where to restore it to")
    steps = path.split(b"/")
    directory = await _directory(fs, steps[:-1], make=to is None, everything=everything)
    done = Restored(path)
    newest: dict[tuple[Ino, bytes], Removed] = {}
    for removed in everything:
        newest[removed.entry.parent, removed.entry.name] = removed
    below: dict[Ino, list[Removed]] = {}
    for removed in newest.values():
        below.setdefault(removed.entry.parent, []).append(removed)
    waiting = [(chosen, directory, steps[-1])]
    looked_at = 0
    while waiting:
        looked_at += 1
        progress(looked_at)
        removed, directory, name = waiting.pop()
        try:
            attr = await fs.restore(removed.entry.ino, directory, name)
        except Exists:
            attr = await fs.lookup(directory, name)
            if removed is chosen and not (removed.is_dir and attr.is_dir):
                raise
            if not (removed.is_dir and attr.is_dir):
                continue
        if not removed.is_dir:
            done.files += 1
        inside = below.pop(removed.entry.ino, ())
        waiting.extend((one, attr.ino, one.entry.name) for one in inside)
    return done


async def empty(fs: Filesystem, *, progress: Callable[[int], None] = _silent) -> int:
    """Frees everything that is in the trash now; the number of entries.

    `progress` is told it after each step.
    """
    return await _purge(fs, datetime.now(UTC), progress)


async def tidy(fs: Filesystem, *, progress: Callable[[int], None] = _silent) -> int:
    """Frees what has been kept long enough, or is too much; the number of entries.

    `progress` is told it after each step.
    """
    meta = fs.stores.meta
    done = await _purge(fs, None, progress)
    while count := await meta.thin_trash(VERSIONS, PAGE):
        done += count
        progress(done)
    until = await meta.trash_excess(SHARE, ROWS)
    return done if until is None else await _purge(fs, until, progress, done)


async def _purge(
    fs: Filesystem, until: datetime | None, progress: Callable[[int], None], done: int = 0
) -> int:
    while count := await fs.stores.meta.purge_trash(until, PAGE):
        done += count
        progress(done)
    return done


def _choose(everything: list[Removed], what: bytes | Ino) -> Removed:
    path = what.strip(b"/") if isinstance(what, bytes) else None
    for removed in reversed(everything):
        if removed.path == path if path is not None else removed.entry.ino == what:
            return removed
    raise NotFound("nothing like that is in the trash")


async def _directory(
    fs: Filesystem, steps: list[bytes], *, make: bool, everything: list[Removed]
) -> Ino:
    """The directory of a path; with `make` those that are missing come back from the trash."""
    at, path = ROOT_INO, b""
    for step in steps:
        path = path + b"/" + step if path else step
        try:
            attr = await fs.lookup(at, step)
        except NotFound:
            gone = [one for one in everything if one.path == path and one.is_dir]
            if not make or not gone:
                raise
            attr = await fs.restore(gone[-1].entry.ino, at, step)
        if not attr.is_dir:
            raise NotDirectory(f"{path!r} is in the way")
        at = attr.ino
    return at
