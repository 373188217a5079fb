"""Objects as files: written to a temporary file, synced, renamed into place, directories synced.

A file contains the object's bytes, then its headers as JSON, then a fixed-size trailer with the
length of the JSON. A file without a valid trailer is damaged and is never served. All functions
block; the server calls them from threads.

Critical sections: `_durable` and `_removals` change under `_lock`. A directory is in `_durable`
while its own entry is known to be on the disk. A delete increments `_removals` before it unlinks,
and a sync adds directories only if no delete started meanwhile. So a directory that was removed and
recreated is never mistaken for its predecessor.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import struct
import threading
import zlib
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from objectserver.durable import sync_directory
from objectserver.names import key_to_path

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_END = struct.Struct(">II8s")
"""The trailer: length and CRC-32 of the JSON, magic."""
_MAGIC = b"boxd-ob1"
_TAIL_GUESS = 1024
_DURABLE_MAX = 100_000
_RENAME_TRIES = 32
"""Attempts to publish a file. A delete may remove the empty directory between its creation and the
rename."""


class NoSuchObject(Exception):
    """The key has no object."""


class ObjectExists(Exception):
    """The key already has an object, and the request must not replace it."""


class DamagedObject(Exception):
    """The trailer of the file is invalid."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Metadata stored with the bytes. `size` is in bytes, `modified` in seconds since the epoch."""

    size: int
    etag: str
    modified: float
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class OpenObject:
    """An open object; the receiver must close `descriptor`."""

    descriptor: int
    info: ObjectInfo


class Spool:
    """A file being written, invisible until it is published. `discard` is idempotent."""

    def __init__(self, directory: Path) -> None:
        """Create the file in `directory`. Raises OSError."""
        self.path = directory / secrets.token_hex(16)
        self.size = 0
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self.descriptor = os.open(self.path, flags, 0o600)

    def write(self, data: memoryview) -> None:
        """Append all of `data`. Raises OSError."""
        while data:
            written = os.write(self.descriptor, data)
            self.size += written
            data = data[written:]

    def append_file(self, source: int, size: int) -> None:
        """Append the first `size` bytes of an open file; the kernel copies them. Raises OSError."""
        copied = 0
        while copied < size:
            count = os.copy_file_range(source, self.descriptor, size - copied, offset_src=copied)
            if count == 0:
                raise OSError(errno.EIO, "a stored file is shorter than recorded")
            copied += count
        self.size += size

    def seal(self, info: ObjectInfo) -> None:
        """Write the trailer and make the file durable. Raises OSError."""
        text = json.dumps(asdict(info)).encode("utf-8")
        end = text + _END.pack(len(text), zlib.crc32(text), _MAGIC)
        self.write(memoryview(end))
        os.fsync(self.descriptor)

    def discard(self) -> None:
        """Close the file, and delete it unless it was published."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            self.path.unlink(missing_ok=True)


class ObjectFiles:
    """All objects below `root`: `data/` and `tmp/`. Multipart uploads use `uploads/`."""

    def __init__(self, root: Path) -> None:
        self.data = root / "data"
        self.temporary = root / "tmp"
        self._lock = threading.Lock()
        self._durable: set[Path] = set()
        self._removals = 0

    def prepare(self) -> None:
        """Create the directories and remove unfinished files of an earlier process.

        Raises OSError.
        """
        for directory in (self.data, self.temporary):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_directory(directory.parent)
        for path in self.temporary.iterdir():
            path.unlink()

    def spool(self) -> Spool:
        """Create a temporary file. Raises OSError."""
        return Spool(self.temporary)

    def path(self, key: str) -> Path:
        """Return the path of an object's file. Raises BadKey."""
        return self.data.joinpath(*key_to_path(key))

    def open(self, key: str) -> OpenObject:
        """Open an object for reading. Raises BadKey, NoSuchObject, DamagedObject, OSError."""
        return open_file(self.path(key))

    def publish(self, spool: Spool, key: str, *, only_new: bool = False) -> None:
        """Give a sealed file its name, durably.

        Raises ObjectExists if `only_new` is set and the key has an object. Raises OSError if the
        object could not be stored.
        """
        target = self.path(key)
        fresh = not target.exists()
        with self._lock:
            removals = self._removals
        for _ in range(_RENAME_TRIES):
            try:
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            except (FileExistsError, FileNotFoundError):
                continue  # it existed, or its parent did, and a delete is removing it right now
            try:
                if only_new:
                    os.link(spool.path, target)
                    spool.path.unlink()
                else:
                    spool.path.rename(target)
                break
            except FileExistsError:
                raise ObjectExists(key) from None
            except FileNotFoundError:
                continue
        else:
            raise OSError(errno.EAGAIN, "other requests keep removing the directory")
        try:
            self._sync(target.parent, removals)
        except OSError:
            # The name may never reach the disk, and no later sync would report that again.
            if fresh:
                target.unlink(missing_ok=True)
            raise

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects, durably; missing ones are no error. Raises OSError, BadKey."""
        touched: set[Path] = set()
        for key in keys:
            path = self.path(key)
            with self._lock:
                self._removals += 1
                self._durable.difference_update((path.parent, *path.parent.parents))
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
                touched.add(path.parent)
        for directory in touched:
            self._prune(directory)

    def _sync(self, directory: Path, removals: int) -> None:
        """Sync `directory`, and its ancestors whose own entries may not be on the disk yet."""
        sync_directory(directory)
        fresh: list[Path] = []
        while directory != self.data:
            with self._lock:
                if directory in self._durable:
                    break
            sync_directory(directory.parent)
            fresh.append(directory)
            directory = directory.parent
        if fresh:
            with self._lock:
                if len(self._durable) > _DURABLE_MAX:
                    self._durable.clear()
                if removals == self._removals:
                    self._durable.update(fresh)

    def _prune(self, directory: Path) -> None:
        """Remove empty directories upwards, and sync the first one that remains."""
        while directory != self.data:
            try:
                directory.rmdir()
            except FileNotFoundError:
                pass  # another delete has removed it
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                break
            directory = directory.parent
        # Another delete may remove this directory now; that delete then syncs the parent.
        with contextlib.suppress(FileNotFoundError):
            sync_directory(directory)


def open_file(path: Path) -> OpenObject:
    """Open an object's file and read its trailer. Raises NoSuchObject, DamagedObject, OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise NoSuchObject from None
    try:
        return OpenObject(descriptor, _read_end(descriptor))
    except BaseException:
        os.close(descriptor)
        raise


def read_info(path: Path) -> ObjectInfo:
    """Read the metadata of an object's file. Raises NoSuchObject, DamagedObject, OSError."""
    opened = open_file(path)
    os.close(opened.descriptor)
    return opened.info


def _read_end(descriptor: int) -> ObjectInfo:
    total = os.fstat(descriptor).st_size
    start = max(0, total - _TAIL_GUESS)
    tail = os.pread(descriptor, _TAIL_GUESS, start)
    if len(tail) < _END.size:
        raise DamagedObject("the file is too short")
    length, checksum, magic = _END.unpack(tail[-_END.size :])
    if magic != _MAGIC or length + _END.size > total:
        raise DamagedObject("the trailer is missing")
    if length + _END.size > len(tail):
        text = os.pread(descriptor, length, total - _END.size - length)
    else:
        text = tail[-_END.size - length : -_END.size]
    if zlib.crc32(text) != checksum:
        raise DamagedObject("the checksum of the metadata is wrong")
    info = ObjectInfo(**json.loads(text))
    if info.size != total - _END.size - length:
        raise DamagedObject("the size is wrong")
    return info
