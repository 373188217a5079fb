"""The output of one background command: a ring of bytes in a file, and which stream each is from.

The file is open only while it is read or written. So nothing that happens to it in the box, such as
its removal, can prevent a checkpoint of the agent. No method awaits, so the state needs no locks.
"""

from __future__ import annotations

import errno
import os
from array import array
from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MAX_RUNS = 16_384
"""Maximum number of changes between the streams to remember. The bytes before them are dropped."""
_COMPACT = 1024


class OutputLog:
    """Stores the last `capacity` bytes of both streams, in the order in which they were added.

    Offsets count all bytes ever added. `begin` is the offset of the oldest stored byte, `end` that
    of the next one.
    """

    def __init__(self, path: Path, capacity: int, max_runs: int = MAX_RUNS) -> None:
        """Create the file, mode 0600. Raises OSError."""
        self._path = path
        self._capacity = capacity
        self._max_runs = max_runs
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        self._runs = array("Q")
        """Start of each run of bytes of one stream, times two, plus one for stderr."""
        self._first = 0
        """Index of the oldest run with a stored byte."""
        self.begin = 0
        self.end = 0

    def add(self, data: bytes, *, stderr: bool) -> None:
        """Add bytes. If the file cannot be written, they and all bytes before count as dropped."""
        if not data:
            return
        if self._first == len(self._runs) or bool(self._runs[-1] & 1) is not stderr:
            self._runs.append(self.end << 1 | stderr)
        self.end += len(data)
        kept = data[-self._capacity :]
        try:
            self._write(self.end - len(kept), kept)
        except OSError:
            self.begin = self.end
        else:
            self.begin = max(self.begin, self.end - self._capacity)
            if len(self._runs) - self._first > self._max_runs:
                self.begin = max(self.begin, self._runs[-self._max_runs] >> 1)
        self._forget_runs()

    def read(self, offset: int, size: int) -> tuple[bytes, bool]:
        """Return at most `size` bytes of one stream from `offset`, and whether it is stderr.

        `offset` is at least `begin`. Returns no bytes at the end. If the file cannot be read, all
        stored bytes count as dropped, and the result is empty.
        """
        if offset >= self.end:
            return b"", False
        index = bisect_right(self._runs, offset << 1 | 1, lo=self._first) - 1
        last = index + 1 == len(self._runs)
        stop = self.end if last else self._runs[index + 1] >> 1
        stderr = bool(self._runs[index] & 1)
        try:
            return self._read(offset, min(size, stop - offset)), stderr
        except OSError:
            self.begin = self.end
            self._forget_runs()
            return b"", stderr

    def remove(self) -> None:
        """Remove the file. A failure leaves it behind, in a directory that the agent empties."""
        with suppress(OSError):
            self._path.unlink()

    def _forget_runs(self) -> None:
        """Forget the runs without a stored byte."""
        runs = self._runs
        if self.begin == self.end:
            self._first = len(runs)
        else:
            while self._first + 1 < len(runs) and runs[self._first + 1] >> 1 <= self.begin:
                self._first += 1
        if self._first >= _COMPACT:
            del runs[: self._first]
            self._first = 0

    def _write(self, offset: int, data: bytes) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            view = memoryview(data)
            while view:
                place = offset % self._capacity
                written = os.pwrite(file, view[: self._capacity - place], place)
                view, offset = view[written:], offset + written
        finally:
            os.close(file)

    def _read(self, offset: int, size: int) -> bytes:
        place = offset % self._capacity
        file = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            data = os.pread(file, min(size, self._capacity - place), place)
        finally:
            os.close(file)
        if not data:
            raise OSError(errno.EIO, "the file is shorter than the output")
        return data
