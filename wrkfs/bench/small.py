"""Workloads on many small files. Each function returns the number of its units."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from wrkfs.bench.place import LISTED, WorkloadFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wrkfs.bench.place import Place

SMALL = 4096
LONG_ENOUGH = 0.25
"""Seconds for which warm workloads repeat, because one pass may be too short to measure."""
MAX_PASSES = 50


def create(place: Place) -> int:
    """Create empty files."""
    return _each(place.names("empty"), _create)


def create_write_4k(place: Place) -> int:
    """Create each small file, write 4 KiB, and close it."""
    return _each(place.names("small"), _write)


def stat(place: Place) -> int:
    """Call stat on each small file."""
    return _each(place.names("small"), os.stat)


def stat_again(place: Place) -> int:
    """Repeat `stat` for a while."""
    return _passes(lambda: stat(place))


def open_read(place: Place) -> int:
    """Open, read and close each small file."""
    return _each(place.names("small"), _read)


def open_read_again(place: Place) -> int:
    """Repeat `open_read` for a while."""
    return _passes(lambda: open_read(place))


def readdir(place: Place) -> int:
    """List the entries of a directory with their attributes."""
    with os.scandir(place.lasting / LISTED) as entries:
        count = len([entry.stat() for entry in entries])
    if count < place.size.entries:
        raise WorkloadFailed(f"the listing has {count} of {place.size.entries} entries")
    return count


def rename(place: Place) -> int:
    """Rename the empty files within their directory, to names that do not exist."""
    return _each(place.names("empty"), lambda path: os.rename(path, path + ".new"))


def unlink(place: Place) -> int:
    """Unlink the small files."""
    return _each(place.names("small"), os.unlink)


def mkdir(place: Place) -> int:
    """Create directories."""
    return _each(place.names("folder"), os.mkdir)


def rmdir(place: Place) -> int:
    """Remove these directories."""
    return _each(place.names("folder"), os.rmdir)


def prepare_small(place: Place) -> None:
    """Create the missing small files."""
    _create_missing(place.names("small"), _write)


def prepare_empty(place: Place) -> None:
    """Create the missing empty files."""
    _create_missing(place.names("empty"), _create)


def prepare_folders(place: Place) -> None:
    """Create the missing directories."""
    _create_missing(place.names("folder"), os.mkdir)


def prepare_listed(place: Place) -> None:
    """Fill the directory that `readdir` lists."""
    folder = place.lasting / LISTED
    folder.mkdir(exist_ok=True)
    _create_missing([str(folder / f"entry{n}") for n in range(place.size.entries)], _create)


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
            raise WorkloadFailed(f"{path} does not have {SMALL} bytes")
    finally:
        os.close(descriptor)


def _each(paths: Sequence[str], act: Callable[[str], object]) -> int:
    for path in paths:
        act(path)
    return len(paths)


def _create_missing(paths: Sequence[str], create: Callable[[str], object]) -> None:
    existing = _listing({os.path.dirname(path) for path in paths})
    _each([path for path in paths if path not in existing], create)


def _listing(folders: Iterable[str]) -> set[str]:
    return {os.path.join(folder, name) for folder in folders for name in os.listdir(folder)}


def _passes(workload: Callable[[], int]) -> int:
    end = time.perf_counter() + LONG_ENOUGH
    count = 0
    for _ in range(MAX_PASSES):
        count += workload()
        if time.perf_counter() >= end:
            break
    return count
