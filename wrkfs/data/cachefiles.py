"""Files of the disk cache: one for each piece of a block. Blocking; called from threads.

::

    DIRECTORY/lock                                        held by the process that uses it
    DIRECTORY/<two digits>/<slice>-<index>-<first>-<size>   the bytes [first, first + size)

Nothing in a file is believed: who reads compares its bytes with the sums that the database holds.
A file whose length is not the one in its name was being written when the machine stopped.
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
"""Whatever somebody put in a file's place: no link is followed, no fifo waits."""


class Refused(Exception):
    """The directory cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The bytes [first, first + size) of a block, in a file of its own."""

    block: BlockId
    first: int
    size: int

    @property
    def name(self) -> str:
        """File name below the directory."""
        slice_id, index = self.block
        return f"{slice_id % FOLDERS:02x}/{slice_id}-{index}-{self.first}-{self.size}"


class CacheFiles:
    """See the module. No two threads work on one piece at once; the caller sees to that."""

    def __init__(self, directory: Path, reserve: float) -> None:
        """`reserve` is the share of the disk that stays free for others."""
        self._directory = directory
        self._reserve = reserve
        self._lock = -1

    def prepare(self) -> None:
        """Makes the directory, 0700, and takes its lock. Refused; OSError."""
        self._directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._make()
        status = self._directory.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise Refused("it is not a directory of this user")
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise Refused("others may look into it; run: chmod 700")
        self._lock = os.open(self._directory / "lock", os.O_RDONLY | os.O_CREAT | _FLAGS, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused("another process uses it") from None

    def scan(self) -> list[Piece]:
        """What an earlier process has left, least recently used first; removes what is torn."""
        found: list[tuple[int, Piece]] = []
        for number in range(FOLDERS):
            folder = self._directory / f"{number:02x}"
            with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
                found += _pieces(entries)
        found.sort(key=lambda one: one[0])
        return [piece for _, piece in found]

    def read(self, piece: Piece, start: int, size: int) -> memoryview:
        """The bytes [start, start + size) of the block. OSError, also when the file is short."""
        descriptor = os.open(self._directory / piece.name, os.O_RDONLY | _FLAGS)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EIO, "not a file")
            # The order of use survives a restart.
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
        """Writes a piece after removing others. OSError; then nothing of it is left."""
        self.remove(victims)
        path = self._directory / piece.name
        self._make()
        path.parent.mkdir(mode=0o700, exist_ok=True)
        space = os.statvfs(self._directory)
        if space.f_bavail < space.f_blocks * self._reserve:
            raise OSError(errno.ENOSPC, f"less than {self._reserve:.0%} of the disk is free")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _FLAGS, 0o600)
        try:
            left = data
            while left:
                left = left[os.write(descriptor, left) :]
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def remove(self, pieces: Iterable[Piece]) -> None:
        """Removes files; what cannot be removed is of no use to anybody and stays."""
        for piece in pieces:
            with suppress(OSError):
                (self._directory / piece.name).unlink()

    def close(self) -> None:
        """Gives the lock back. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _make(self) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)


def _pieces(entries: Iterator[os.DirEntry[str]]) -> Iterator[tuple[int, Piece]]:
    """(time of last use, piece) of one folder's files."""
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
