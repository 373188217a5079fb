"""The image of a box's memory on the disk: a directory that is complete when it has its name.

CRIU writes into a directory beside it; a manifest is added, all of it goes to the disk, and then
the directory gets its name in one step. Before a restore begins a mark is put into it, so memory
is used once at most: a box that does not run and whose memory is marked has lost it. What is
removed loses its name first, and is never taken for memory again.
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
"""Of the manifest. It changes with `Facts` and `State`: other releases' images are not read."""
_ATTEMPT = "attempt"
_NEW, _OLD = ".new", ".old"
_DIGEST_LIMIT = 1024 * 1024
"""Files up to this many bytes are compared by their digests, larger ones (pages) by a sum that
hardware makes. *Measured* for 100 MB on a busy host: 36 ms, a digest 300 ms. It is made while the
pages are written (`Pages`), and compared while the box's network is made."""
_CHUNK = 256 * 1024
_START_WRITING = 2
"""SYNC_FILE_RANGE_WRITE: begin, and do not wait."""
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the image depends on. A box is brought back only where all of it is the same.

    `bundle` is the digest of the box's configuration, `host` names CRIU, runc, kernel and CPU.
    """

    box_id: str
    bundle: str
    host: str


@dataclass(frozen=True, slots=True)
class State:
    """What the box had when its memory was written, and has to have again.

    `drive`: /wrk was mounted; `address` is its own one, `runtime` the directory of its agent's
    files; `rights` are those of its first process.
    """

    drive: bool
    address: str
    runtime: str
    rights: dict[str, str]


class Pages:
    """The files of pages of an image, which only grow while it is made: what there is of them is
    summed meanwhile, and with `lasting` has its way to the disk begun.

    One call of `take` at a time; the last one has ended when `sums` is called.
    """

    def __init__(self, place: Path, *, lasting: bool) -> None:
        self._place = place
        self._lasting = lasting
        self._known: dict[str, tuple[int, int]] = {}

    def take(self) -> None:
        """Takes what there is by now. Blocks for as long as reading that takes. OSError."""
        for file in self._place.glob("pages-*.img"):
            if self._lasting:
                _start_writing(file)
            self._known[file.name] = _pages_sum(file, *self._known.get(file.name, (0, 0)))

    def sum(self, file: Path) -> int:
        """The sum of a whole file."""
        return _pages_sum(file, *self._known.get(file.name, (0, 0)))[1]


def unpublished(directory: Path) -> Path:
    """Where the image is as long as it is made."""
    return directory.with_name(directory.name + _NEW)


def new(directory: Path) -> Path:
    """An empty directory in which the image is made."""
    place = unpublished(directory)
    if place.exists():
        shutil.rmtree(place)
    place.mkdir(mode=0o700)
    return place


def drop_rests(directory: Path) -> None:
    """Removes what is not complete, or forgotten. No error if there is nothing."""
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
    """Completes what was made in `new` and gives it its name; `pages`: what is summed of it.

    When this returns it is on the disk, and so is what is on the file systems of `beside`.
    """
    place = unpublished(directory)
    seal(place, facts, state, pages)
    store(place, beside)
    place.rename(directory)
    sync_directory(directory.parent)


def store(place: Path, beside: Iterable[Path]) -> None:
    """Puts an image on the disk, and all that is on the file systems of `beside`.

    The file system of the image alone is that of the state directory: what others write there is
    not waited for.
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
    """Writes the manifest for the files of a directory."""
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
    """Makes a copy of another box's image that of a box."""
    content, _ = read(directory)
    content["facts"] |= {"box_id": box_id, "bundle": bundle}
    _write(directory, content)


def _write(place: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=1)
    new = place / f"{MANIFEST}{_NEW}"
    new.write_text(f"{_sum(text.encode())}\n{text}\n")
    new.rename(place / MANIFEST)


def is_there(directory: Path) -> bool:
    """Whether the box has memory that was not used yet."""
    return (directory / MANIFEST).exists() and not is_marked(directory)


def is_marked(directory: Path) -> bool:
    """Whether a restore from it was begun."""
    return mark(directory).exists()


def check(directory: Path, facts: Facts) -> State:
    """Whether it is complete and of these facts, but for `check_pages`, which takes longer.

    MemoryLost says what is wrong.
    """
    if is_marked(directory):
        raise MemoryLost("the service ended while the box's memory was being brought back")
    content, state = read(directory)
    for name, value in asdict(facts).items():
        if content["facts"].get(name) != value:
            raise MemoryLost(f"its memory was kept {_OTHER[name]}")
    sizes = {file.name: file.stat().st_size for file in directory.iterdir()}
    del sizes[MANIFEST]
    if sizes != content["sizes"]:
        raise MemoryLost("the image of its memory is not complete")
    for name, known in content["sums"].items():
        if _sum((directory / name).read_bytes()) != known:
            raise MemoryLost(f"the image of its memory is damaged ({name})")
    return state


def check_pages(directory: Path) -> None:
    """Whether the pages are as they were written. MemoryLost when they are not."""
    content, _ = read(directory)
    for name, known in content["pages"].items():
        try:
            found = _pages_sum(directory / name)[1]
        except OSError as error:
            raise MemoryLost(f"its memory cannot be read ({name}: {error.strerror})") from error
        if found != known:
            raise MemoryLost(f"the image of its memory is damaged ({name})")


def read(directory: Path) -> tuple[dict[str, Any], State]:
    """The manifest, and the state in it. MemoryLost when there is none that can be read."""
    try:
        known, _, text = (directory / MANIFEST).read_text(errors="replace").partition("\n")
    except FileNotFoundError:
        raise MemoryLost("the box has no memory on the disk") from None
    if _sum(text.removesuffix("\n").encode()) != known:
        raise MemoryLost(f"the image of its memory is damaged ({MANIFEST})")
    content: dict[str, Any] = json.loads(text)
    if content.get("format") != FORMAT:
        raise MemoryLost("its memory was kept by another release of the service")
    return content, State(**content["state"])


def mark(directory: Path) -> Path:
    """The file that says that a restore was begun, once it is there and on the disk."""
    return directory / _ATTEMPT


def forget(directory: Path, *, sync: bool = True) -> None:
    """Takes the image its name, with `sync` on the disk, too; `drop_rests` removes what it was.

    No error if there is none.
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
    """Puts the names in a directory on the disk."""
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
    """Puts the whole file system of a directory on the disk: one wait instead of sixty."""
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


def _pages_sum(file: Path, length: int = 0, found: int = 0) -> tuple[int, int]:
    """Length and sum of a file, of which so much is summed already.

    Not by a mapping: a page that cannot be read would end the service. The interpreter goes on
    with other threads meanwhile.
    """
    chunk = memoryview(bytearray(_CHUNK))
    with file.open("rb", buffering=0) as pages:
        pages.seek(length)
        while more := pages.readinto(chunk):
            found = crc32c(chunk[:more], found)
            length += more
    return length, found


def _start_writing(file: Path) -> None:
    """Has the kernel begin to write a file to the disk. A hint: failing is no error."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        whole = (ctypes.c_long(0), ctypes.c_long(0))
        _libc.sync_file_range(ctypes.c_int(descriptor), *whole, ctypes.c_uint(_START_WRITING))
    finally:
        os.close(descriptor)
