"""Files of the disk cache: one for each piece of a block. All calls block; threads make them.

::

    DIRECTORY/lock                                        locked by the process that uses it
    DIRECTORY/<two digits>/<slice>-<index>-<first>-<size>   the bytes [first, first + size)

The files are not trusted: the reader compares their bytes with the checksums in the database. A
file whose length differs from its name is incomplete, because the machine stopped during the write.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wrkfs.types import SliceId

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from wrkfs.data.cache import BlockId

FOLDERS = 256
_NAME = re.compile(r"([0-9]{1,19})-([0-9]{1,10})-([0-9]{1,8})-([0-9]{1,8})")
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags for a link or fifo in the place of a file: do not follow a link, do not wait for a fifo."""


class Unusable(Exception):
    """The directory cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The bytes [first, first + size) of a block, in one file."""

    block: BlockId
    first: int
    size: int

    @property
    def name(self) -> str:
        """File name below the directory."""
        slice_id, index = self.block
        return f"{slice_id % FOLDERS:02x}/{slice_id}-{index}-{self.first}-{self.size}"


class CacheFiles:
    """The files (see above). The caller never uses one piece in two threads at once."""

    def __init__(self, directory: Path, reserve: float) -> None:
        """`reserve` is the share of the disk that the cache leaves free."""
        self._directory = directory
        self._reserve = reserve
        self._lock = -1

    def prepare(self) -> None:
        """Create the directory with mode 0700, and lock it. Raises Unusable, OSError."""
        self._directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._create_directory()
        status = self._directory.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise Unusable("it is not a directory that belongs to this user")
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise Unusable(f"other users can access it; run: chmod 700 {self._directory}")
        self._lock = os.open(self._directory / "lock", os.O_RDONLY | os.O_CREAT | _FLAGS, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unusable("another process uses it") from None

    def scan(self) -> list[Piece]:
        """Return the pieces of an earlier process, the least recently used first.

        Deletes incomplete files.
        """
        pieces: list[tuple[int, Piece]] = []
        for number in range(FOLDERS):
            folder = self._directory / f"{number:02x}"
            with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
                pieces += _pieces(entries)
        pieces.sort(key=lambda item: item[0])
        return [piece for _, piece in pieces]

    def read(self, piece: Piece, start: int, size: int) -> memoryview:
        """Return the bytes [start, start + size) of the block.

        Raises OSError, also for a short file.
        """
        descriptor = os.open(self._directory / piece.name, os.O_RDONLY | _FLAGS)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EIO, "not a regular file")
            # The mtime is the time of the last use: `scan` sorts by it.
            with suppress(OSError):
                os.utime(descriptor)
            data = bytearray(size)
            at = 0
            with memoryview(data) as view:
                while at < size:
                    count = os.preadv(descriptor, [view[at:]], start - piece.first + at)
                    if not count:
                        raise OSError(errno.EIO, "the file is short")
                    at += count
            return memoryview(data)
        finally:
            os.close(descriptor)

    def store(self, piece: Piece, data: memoryview, victims: Iterable[Piece]) -> None:
        """Delete `victims`, then write a piece. After an OSError, no part of the piece remains."""
        self.remove(victims)
        path = self._directory / piece.name
        self._create_directory()
        path.parent.mkdir(mode=0o700, exist_ok=True)
        space = os.statvfs(self._directory)
        if space.f_bavail < space.f_blocks * self._reserve:
            raise OSError(errno.ENOSPC, f"less than {self._reserve:.0%} of the disk is free")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _FLAGS, 0o600)
        try:
            rest = data
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def remove(self, pieces: Iterable[Piece]) -> None:
        """Delete files. Ignores errors."""
        for piece in pieces:
            with suppress(OSError):
                (self._directory / piece.name).unlink()

    def close(self) -> None:
        """Release the lock. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _create_directory(self) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)


def _pieces(entries: Iterator[os.DirEntry[str]]) -> Iterator[tuple[int, Piece]]:
    """Yield (time of last use, piece) for the files of one folder."""
    for entry in entries:
        match = _NAME.fullmatch(entry.name)
        with suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            if match is None or not stat.S_ISREG(status.st_mode):
                continue
            slice_id, index, first, size = (int(part) for part in match.groups())
            if size == status.st_size:
                yield status.st_mtime_ns, Piece((SliceId(slice_id), index), first, size)
            else:
                os.unlink(entry.path)
