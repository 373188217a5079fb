"""Handle numbers by which the kernel knows open files and directories."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

from wrkfs.errors import BadDescriptor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wrkfs.fs import Filesystem
    from wrkfs.types import Dentry, Ino

T = TypeVar("T")

FIRST_FETCH = 410
"""Number of entries in the first fetch. With attributes, they fill the 64 KiB that libc reads."""
LEAST_FETCH = 16
"""Smallest number of entries to fetch."""
LIBRARY_BUFFER = 64 * 1024
"""Bytes that the C library reads at once."""
ENTRY_HEAD = 152
"""Bytes of `struct fuse_direntplus` before the name."""

DOT_COOKIES = 2
"""For the kernel `.` has cookie 1 and `..` cookie 2, so the store's cookies are shifted by two."""


class Table(Generic[T]):
    """Open objects by number. Numbers are not reused."""

    def __init__(self) -> None:
        self._open: dict[int, T] = {}
        self._last = 0

    def add(self, thing: T) -> int:
        """Add an object and return its number."""
        self._last += 1
        self._open[self._last] = thing
        return self._last

    def __getitem__(self, number: int) -> T:
        try:
            return self._open[number]
        except KeyError:
            raise BadDescriptor(f"no open handle {number}") from None

    def pop(self, number: int) -> T:
        """Remove and return the object. Raises BadDescriptor for an unknown number."""
        thing = self[number]
        del self._open[number]
        return thing

    def __len__(self) -> int:
        return len(self._open)


def entry_size(name: bytes) -> int:
    """Return the size in bytes of an entry in a READDIRPLUS answer."""
    return -(-(ENTRY_HEAD + len(name)) // 8) * 8


class DirectoryCursor:
    """One open directory: where the next readdir continues.

    The position is the cookie of the last entry. So if the directory changes meanwhile, an entry
    that stays is neither skipped nor repeated. Every answer contains entries that the store
    returned after the request was made. The kernel trusts their attributes, and an older size would
    truncate cached pages.
    """

    def __init__(self, fs: Filesystem, ino: Ino) -> None:
        self.ino = ino
        self.parent = ino
        self._fs = fs
        self._limit = FIRST_FETCH
        self._room = LIBRARY_BUFFER
        self._losses = fs.losses

    async def after(self, cookie: int) -> list[Dentry]:
        """Return the entries after `cookie`, a cookie of the kernel; empty at the end."""
        after = max(cookie - DOT_COOKIES, 0)
        if cookie >= DOT_COOKIES:
            return await self._fs.readdir(self.ino, after, self._limit)
        # The listing comes first: a store with leases returns the parent with it.
        entries, self.parent = await asyncio.gather(
            self._fs.readdir(self.ino, after, self._limit), self._fs.parent(self.ino)
        )
        return entries

    async def sync(self) -> None:
        """Make names durable.

        Raises StorageError, once, if changes made since the directory was opened are lost.
        """
        try:
            await self._fs.sync_directory(self.ino, self._losses)
        finally:
            self._losses = self._fs.losses

    def fitting(self, entries: Sequence[Dentry], dots: int) -> int:
        """Estimate how many entries fit into an answer after `dots` of `.` and `..`.

        The estimate can be too high only in the first answer, for a reader with a small buffer.
        """
        used = dots * entry_size(b"..")
        for number, entry in enumerate(entries):
            used += entry_size(entry.name)
            if used > self._room:
                return number
        return len(entries)

    def took(self, entries: Sequence[Dentry], offered: int, dots: int = 0) -> None:
        """Record that the kernel took `entries`, of `offered` ones, after `dots` of `.` and `..`.

        The requests of one reader have one size, which the kernel does not report. So the next
        fetch requests slightly more entries than the kernel took now.
        """
        if len(entries) < offered:
            self._room = dots * entry_size(b"..") + sum(entry_size(one.name) for one in entries)
            self._limit = max(len(entries) + len(entries) // 8, LEAST_FETCH)
        elif offered >= self._limit:
            self._limit = min(2 * self._limit, FIRST_FETCH)
