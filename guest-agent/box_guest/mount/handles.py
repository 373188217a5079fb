"""Numbers that the kernel knows open files and directories by."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

from wrkfs.errors import BadDescriptor

if TYPE_CHECKING:
    from wrkfs.fs import Filesystem
    from wrkfs.types import Dentry, Ino

T = TypeVar("T")

FIRST_FETCH = 410
"""Entries of the first fetch: with attributes as many fill the 64 KiB that the C library reads."""
LEAST_FETCH = 16
"""Entries of the smallest fetch."""

DOT_COOKIES = 2
"""`.` has cookie 1 and `..` cookie 2 for the kernel, so the store's cookies are moved by two."""


class Table(Generic[T]):
    """Open things by number. Numbers are not used twice."""

    def __init__(self) -> None:
        self._open: dict[int, T] = {}
        self._last = 0

    def add(self, thing: T) -> int:
        """Its number."""
        self._last += 1
        self._open[self._last] = thing
        return self._last

    def __getitem__(self, number: int) -> T:
        try:
            return self._open[number]
        except KeyError:
            raise BadDescriptor(f"no open handle {number}") from None

    def pop(self, number: int) -> T:
        """Forgets the number."""
        thing = self[number]
        del self._open[number]
        return thing

    def __len__(self) -> int:
        return len(self._open)


class DirectoryCursor:
    """One open directory: where the next readdir goes on.

    The place is the cookie of the last entry, so a directory that changes meanwhile neither skips
    nor repeats an entry that stays. Every request is answered with what the store says after it was
    made: the kernel believes the attributes, and a size from before would cut cached pages off.
    """

    def __init__(self, fs: Filesystem, ino: Ino) -> None:
        self.ino = ino
        self.parent = ino
        self._fs = fs
        self._limit = FIRST_FETCH
        self._losses = fs.losses

    async def after(self, cookie: int) -> list[Dentry]:
        """Entries behind `cookie`, as the kernel counts; empty at the end."""
        after = max(cookie - DOT_COOKIES, 0)
        if cookie >= DOT_COOKIES:
            return await self._fs.readdir(self.ino, after, self._limit)
        self.parent, entries = await asyncio.gather(
            self._fs.parent(self.ino), self._fs.readdir(self.ino, after, self._limit)
        )
        return entries

    async def sync(self) -> None:
        """Names are durable. StorageError, once, when changes made since it was opened are lost."""
        try:
            await self._fs.sync_names(self._losses)
        finally:
            self._losses = self._fs.losses

    def took(self, taken: int, offered: int) -> None:
        """The kernel took so many entries: the next fetch asks for slightly more than that.

        The requests of one reader are of one size, which the kernel does not tell.
        """
        if taken < offered:
            self._limit = max(taken + taken // 8, LEAST_FETCH)
        elif offered >= self._limit:
            self._limit = min(2 * self._limit, FIRST_FETCH)
