"""The image of a box's memory on the disk: a directory that is complete once it has its name.

CRIU writes into a temporary directory next to the final one. Then the service adds a manifest,
syncs all files to the disk, and renames the directory in one step. A restore creates a mark in the
image before any process runs, so an image is used at most once. If a box does not run and its image
has the mark, the memory is lost. Removal renames the image first, so a partly removed image is
never used.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from boxd.errors import MemoryLost

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MANIFEST = "manifest.json"
FORMAT = 3
"""Version of the manifest. The version changes with `Facts` and `State`. Images of other versions
are not read."""
_ATTEMPT = "attempt"
_NEW, _OLD = ".new", ".old"
_DIGEST_LIMIT = 1024 * 1024
"""Bytes. Smaller files have a SHA-256 digest; larger ones (pages) a CRC-32C, which the processor
computes in hardware. *Measured* for 100 MB on a busy host: CRC 36 ms, digest 300 ms. `Pages`
computes it while CRIU writes the pages. The service compares it while it sets up the box's network.
"""
_CHUNK = 256 * 1024
_START_WRITING = 2
"""SYNC_FILE_RANGE_WRITE: start writing, do not wait."""
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Facts:
    """The dependencies of an image. A box is restored only if all of them are unchanged.

    `bundle` is the digest of the box's configuration. `host` names CRIU, runc, kernel and CPU.
    """

    box_id: str
    bundle: str
    host: str


@dataclass(frozen=True, slots=True)
class State:
    """Properties of the box at the dump, which the restore must recreate.

    `drive`: /wrk was mounted. `address` is the box's own address. `runtime` is the directory of the
    agent's files. `rights` are those of the first process. `lxcfs`: files in /proc showed the box's
    own size. `own_users`: the box had its own user namespace.
    """

    drive: bool
    address: str
    runtime: str
    rights: dict[str, str]
    lxcfs: bool = False
    own_users: bool = False


class Pages:
    """Checksums of an image's page files, computed while CRIU writes them.

    The files only grow. With `lasting`, the kernel also starts to write them to the disk. Only one
    call of `take` may run at a time, and none while `sum` is called.
    """

    def __init__(self, place: Path, *, lasting: bool) -> None:
        self._place = place
        self._lasting = lasting
        self._sums: dict[str, tuple[int, int]] = {}

    def take(self) -> None:
        """Add the data written so far to the sums. Blocks while it reads. Raises OSError."""
        for file in self._place.glob("pages-*.img"):
            if self._lasting:
                _start_writing(file)
            self._sums[file.name] = _pages_sum(file, *self._sums.get(file.name, (0, 0)))

    def sum(self, file: Path) -> int:
        """Return the sum of a complete file."""
        return _pages_sum(file, *self._sums.get(file.name, (0, 0)))[1]


def unpublished(directory: Path) -> Path:
    """Return the path of an image that is not complete yet."""
    return directory.with_name(directory.name + _NEW)


def new(directory: Path) -> Path:
    """Create the empty directory in which CRIU writes the image."""
    place = unpublished(directory)
    if place.exists():
        shutil.rmtree(place)
    place.mkdir(mode=0o700)
    return place


def drop_rests(directory: Path) -> None:
    """Remove incomplete and discarded images. No error if there are none."""
    for ending in (_NEW, _OLD):
        with suppress(FileNotFoundError):
            shutil.rmtree(directory.with_name(directory.name + ending))


def publish(
    directory: Path,
    facts: Facts,
    state: State,
    *,
    pages: Pages | None = None,
    beside: Iterable[Path] = (),
) -> None:
    """Complete the image made in `new`, and rename it to `directory`.

    `pages` are the sums computed so far. When this returns, the image is on the disk, and so are
    the file systems of all paths in `beside`.
    """
    place = unpublished(directory)
    seal(place, facts, state, pages)
    store(place, beside)
    place.rename(directory)
    sync_directory(directory.parent)


def store(place: Path, beside: Iterable[Path]) -> None:
    """Sync an image to the disk, and also the whole file systems of the paths in `beside`.

    On the image's own file system (the state directory's), the function syncs only the image. So
    the call does not wait for data of other writers.
    """
    systems = {path.stat().st_dev: path for path in beside}
    if place.stat().st_dev not in systems:
        files = list(place.iterdir())
        for file in files:
            _start_writing(file)
        for file in files:
            _sync_file(file)
        sync_directory(place)
    for system in systems.values():
        _sync(system)


def seal(place: Path, facts: Facts, state: State, pages: Pages | None = None) -> None:
    """Write the manifest for the files of a directory."""
    pages = pages or Pages(place, lasting=False)
    files = [file for file in sorted(place.iterdir()) if file.name != MANIFEST]
    large = [file for file in files if not _is_small(file)]
    content = {
        "format": FORMAT,
        "facts": asdict(facts),
        "state": asdict(state),
        "sizes": {file.name: file.stat().st_size for file in files},
        "sums": {file.name: _sum(file.read_bytes()) for file in files if _is_small(file)},
        "pages": {file.name: pages.sum(file) for file in large},
    }
    _write(place, content)


def adopt(directory: Path, box_id: str, bundle: str) -> None:
    """Change the manifest of a copied image, so that it belongs to another box."""
    content, _ = read(directory)
    content["facts"] |= {"box_id": box_id, "bundle": bundle}
    _write(directory, content)


def _write(place: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=1)
    new = place / f"{MANIFEST}{_NEW}"
    new.write_text(f"{_sum(text.encode())}\n{text}\n")
    new.rename(place / MANIFEST)


def is_there(directory: Path) -> bool:
    """Return whether there is a complete image that has not been used."""
    return (directory / MANIFEST).exists() and not is_marked(directory)


def is_marked(directory: Path) -> bool:
    """Return whether a process may have run from the image."""
    return mark(directory).exists()


def check(directory: Path, facts: Facts) -> State:
    """Check that the image is complete and matches `facts`, and return its state.

    Does not check the pages (`check_pages`), which takes longer. Raises MemoryLost with the reason.
    """
    if is_marked(directory):
        raise MemoryLost("the service ended while it was restoring the box's memory")
    content, state = read(directory)
    for name, value in asdict(facts).items():
        if content["facts"].get(name) != value:
            raise MemoryLost(f"its memory was saved {_OTHER[name]}")
    sizes = {file.name: file.stat().st_size for file in directory.iterdir()}
    del sizes[MANIFEST]
    if sizes != content["sizes"]:
        raise MemoryLost("the image of its memory is not complete")
    for name, expected in content["sums"].items():
        if _sum((directory / name).read_bytes()) != expected:
            raise MemoryLost(f"the image of its memory is damaged ({name})")
    return state


def check_pages(directory: Path) -> None:
    """Check that the page files are unchanged. Raises MemoryLost if they are not."""
    content, _ = read(directory)
    for name, expected in content["pages"].items():
        try:
            checksum = _pages_sum(directory / name)[1]
        except OSError as error:
            raise MemoryLost(f"its memory cannot be read ({name}: {error.strerror})") from error
        if checksum != expected:
            raise MemoryLost(f"the image of its memory is damaged ({name})")


def read(directory: Path) -> tuple[dict[str, Any], State]:
    """Return the manifest and its state. Raises MemoryLost if there is no readable one."""
    try:
        expected, _, text = (directory / MANIFEST).read_text(errors="replace").partition("\n")
    except FileNotFoundError:
        raise MemoryLost("the box has no memory on the disk") from None
    if _sum(text.removesuffix("\n").encode()) != expected:
        raise MemoryLost(f"the image of its memory is damaged ({MANIFEST})")
    content: dict[str, Any] = json.loads(text)
    if content.get("format") != FORMAT:
        raise MemoryLost("its memory was saved by another release of the service")
    return content, State(**content["state"])


def mark(directory: Path) -> Path:
    """Return the path of the mark, which a restore syncs to the disk before a process may run."""
    return directory / _ATTEMPT


def forget(directory: Path, *, sync: bool = True) -> None:
    """Discard the image by renaming it; `drop_rests` removes the files.

    With `sync`, the rename is on the disk when this returns. No error if there is no image.
    """
    old = directory.with_name(directory.name + _OLD)
    if not directory.exists():
        return
    with suppress(FileNotFoundError):
        shutil.rmtree(old)
    directory.rename(old)
    if sync:
        sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Sync the entries of a directory to the disk."""
    _sync_file(directory, os.O_DIRECTORY)


def _sync_file(file: Path, kind: int = 0) -> None:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | kind)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_OTHER = {
    "box_id": "for another box",
    "bundle": "with another configuration of the box",
    "host": "by another kernel, CPU, CRIU or runc",
}


def _sync(place: Path) -> None:
    """Sync the whole file system of a directory to the disk: one wait instead of sixty."""
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(ctypes.c_int(descriptor)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(place))
    finally:
        os.close(descriptor)


def _is_small(file: Path) -> bool:
    return file.stat().st_size <= _DIGEST_LIMIT


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _pages_sum(file: Path, length: int = 0, checksum: int = 0) -> tuple[int, int]:
    """Return length and sum of a file, continuing after `length` bytes that are already summed.

    The file is read, not mapped: a page of a mapping that cannot be read would kill the service.
    Other threads run meanwhile.
    """
    chunk = memoryview(bytearray(_CHUNK))
    with file.open("rb", buffering=0) as pages:
        pages.seek(length)
        while more := pages.readinto(chunk):
            checksum = crc32c(chunk[:more], checksum)
            length += more
    return length, checksum


def _start_writing(file: Path) -> None:
    """Ask the kernel to start writing a file to the disk. A hint: failure is not an error."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        start, length = ctypes.c_long(0), ctypes.c_long(0)  # the whole file
        flags = ctypes.c_uint(_START_WRITING)
        _libc.sync_file_range(ctypes.c_int(descriptor), start, length, flags)
    finally:
        os.close(descriptor)
