"""Works on many small files: each does its part and tells how many units that were."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from wrkfs.bench.place import THOUSAND, WorkFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wrkfs.bench.place import Place

SMALL = 4096
LONG_ENOUGH = 0.25
"""Seconds for which warm works go on, because one pass may take less than can be measured."""
MAX_PASSES = 50


def create(place: Place) -> int:
    """Empty files."""
    return _each(place.names("empty"), _create)


def create_write_4k(place: Place) -> int:
    """Create, write 4 KiB, close."""
    return _each(place.names("small"), _write)


def stat(place: Place) -> int:
    """Stat of each small file."""
    return _each(place.names("small"), os.stat)


def stat_again(place: Place) -> int:
    """The same, pass after pass."""
    return _passes(lambda: stat(place))


def open_read(place: Place) -> int:
    """Open, read and close each small file."""
    return _each(place.names("small"), _read)


def open_read_again(place: Place) -> int:
    """The same, pass after pass."""
    return _passes(lambda: open_read(place))


def readdir(place: Place) -> int:
    """The entries of a directory with their attributes."""
    with os.scandir(place.lasting / THOUSAND) as entries:
        found = len([entry.stat() for entry in entries])
    if found < place.size.entries:
        raise WorkFailed(f"{found} entries of {place.size.entries}")
    return found


def rename(place: Place) -> int:
    """Within one directory, to names that do not exist."""
    return _each(place.names("empty"), lambda path: os.rename(path, path + ".new"))


def unlink(place: Place) -> int:
    """The small files."""
    return _each(place.names("small"), os.unlink)


def mkdir(place: Place) -> int:
    """Directories."""
    return _each(place.names("folder"), os.mkdir)


def rmdir(place: Place) -> int:
    """The same directories."""
    return _each(place.names("folder"), os.rmdir)


def have_small(place: Place) -> None:
    """Makes the small files that are not there."""
    _missing(place.names("small"), _write)


def have_empty(place: Place) -> None:
    """Makes the empty files that are not there."""
    _missing(place.names("empty"), _create)


def have_folders(place: Place) -> None:
    """Makes the directories that are not there."""
    _missing(place.names("folder"), os.mkdir)


def have_thousand(place: Place) -> None:
    """Fills the directory that is listed."""
    folder = place.lasting / THOUSAND
    folder.mkdir(exist_ok=True)
    _missing([str(folder / f"entry{n}") for n in range(place.size.entries)], _create)


def _create(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def _write(path: str) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    try:
        os.write(descriptor, b"d" * SMALL)
    finally:
        os.close(descriptor)


def _read(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if len(os.read(descriptor, 2 * SMALL)) != SMALL:
            raise WorkFailed(f"{path} is not {SMALL} bytes long")
    finally:
        os.close(descriptor)


def _each(paths: Sequence[str], act: Callable[[str], object]) -> int:
    for path in paths:
        act(path)
    return len(paths)


def _missing(paths: Sequence[str], make: Callable[[str], object]) -> None:
    there = _listing({os.path.dirname(path) for path in paths})
    _each([path for path in paths if path not in there], make)


def _listing(folders: Iterable[str]) -> set[str]:
    return {os.path.join(folder, name) for folder in folders for name in os.listdir(folder)}


def _passes(work: Callable[[], int]) -> int:
    end = time.perf_counter() + LONG_ENOUGH
    done = 0
    for _ in range(MAX_PASSES):
        done += work()
        if time.perf_counter() >= end:
            break
    return done
