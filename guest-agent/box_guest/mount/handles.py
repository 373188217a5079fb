"""Numbers that the kernel knows open files and directories by."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from wrkfs.errors import BadDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wrkfs.fs import Filesystem
    from wrkfs.types import Dentry, Ino

T = TypeVar("T")

DIRECTORY_BATCH = 512
"""Entries fetched at once; the kernel takes up to 200 of them with one request."""
BATCH_LIFETIME = 0.05
"""Seconds after which fetched entries are fetched again: their attributes must be recent."""

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
    nor repeats an entry that stays. Critical section: the batch is replaced, never changed.
    """

    def __init__(self, fs: Filesystem, ino: Ino) -> None:
        self.ino = ino
        self.parent: Ino | None = None
        self._fs = fs
        self._batch: list[Dentry] = []
        self._fetched = 0.0

    async def after(self, cookie: int) -> Iterable[Dentry]:
        """Entries behind `cookie`, as the kernel counts; empty at the end."""
        after = max(cookie - DOT_COOKIES, 0)
        if self.parent is None:
            self.parent, batch = await asyncio.gather(
                self._fs.parent(self.ino), self._fs.readdir(self.ino, after, DIRECTORY_BATCH)
            )
            self._keep(batch)
            return batch
        for number, entry in enumerate(self._batch[:-1]):
            if entry.cookie == after and time.monotonic() - self._fetched < BATCH_LIFETIME:
                return self._batch[number + 1 :]
        batch = await self._fs.readdir(self.ino, after, DIRECTORY_BATCH)
        self._keep(batch)
        return batch

    def _keep(self, batch: list[Dentry]) -> None:
        self._batch = batch
        self._fetched = time.monotonic()
