"""Takes back what the kernel was allowed to rely on, by messages that never wait.

They are written to the descriptor of /dev/fuse beside pyfuse3: its own helpers may block. Numbers
and layouts are those of <linux/fuse.h>.
"""

from __future__ import annotations

import asyncio
import errno
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from wrkfs.types import Ino

NOTIFY_INVAL_INODE = 2
NOTIFY_INC_EPOCH = 8
"""Since Linux 6.16."""
ATTRIBUTES_ONLY = -1
"""Offset of an INVAL_INODE that leaves the pages alone; with pages it may wait for their locks."""
_HEADER = struct.Struct("=IiQ")
_INODE = struct.Struct("=Qqq")
ENTRY_AGE = 0.1
"""Seconds after which the kernel has taken an answer with a name over."""
LISTING_AGE = 2.0
"""Seconds after which the kernel has taken an answered listing over, whatever was heard since."""
_PAUSE = 0.001
DEVICE = "/dev/fuse"


@dataclass(frozen=True, slots=True)
class _Listing:
    """An answer to a directory's reader. `inos`: whose attributes it tells to rely on."""

    directory: Ino
    inos: set[Ino]
    at: float


def device_descriptor() -> int:
    """The descriptor that pyfuse3 serves; LookupError before `pyfuse3.init`."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if os.readlink(entry) == DEVICE:
                return int(entry.name)
        except FileNotFoundError:
            continue
    raise LookupError(f"{DEVICE} is not open")


class Kernel:
    """The kernel's side of one mount.

    The kernel links the names of a listing after it was answered, and takes them for as new as
    that moment; so who takes names back waits for listings under way, until the same reader asks
    for more or ends, and takes them back once more.

    Attributes of an inode that it does not know come with a name. It makes the inode after the
    answer was sent, and takes the attributes over whatever it was told before; so who takes those
    back tries until the inode is there, or the answer is so old that it must have been. With those
    of a listing that is as with its names.
    """

    def __init__(self, descriptor: int) -> None:
        """Finds out what this kernel understands; before the first request is answered."""
        self._descriptor = descriptor
        self.forgets_names = self._send(NOTIFY_INC_EPOCH, b"")
        """False: names must not be given to rely on."""
        self._listings: dict[int, _Listing] = {}
        self._entries: dict[int, int] = {}
        self._older: dict[int, int] = {}
        self._turn = 0.0

    def close(self) -> None:
        """The mount ends: nothing is sent any more."""
        self._descriptor = -1

    def drop_names(self) -> None:
        """The kernel asks again for every name before it uses it."""
        if self.forgets_names:
            self._send(NOTIFY_INC_EPOCH, b"")

    def drop_attributes(self, inos: Iterable[Ino]) -> list[Ino]:
        """The kernel asks again for the attributes of these inodes before it uses them.

        But for those that are answered: it does not know them, and is perhaps about to.
        """
        # What was noted long ago is of no use, and would be taken for new.
        self._age()
        old = time.monotonic() - LISTING_AGE
        named: list[Container[int]] = [self._entries, self._older]
        named += [one.inos for one in self._listings.values() if one.at > old]
        coming = []
        for ino in inos:
            known = self._send(NOTIFY_INVAL_INODE, _INODE.pack(ino, ATTRIBUTES_ONLY, 0))
            if not known and any(ino in some for some in named):
                coming.append(ino)
        return coming

    def named(self, ino: int) -> None:
        """Attributes to rely on are answered with a name, which the kernel may not know yet."""
        if time.monotonic() > self._turn:
            self._age()
        self._entries[ino] = self._entries.get(ino, 0) + 1

    def forgot(self, ino: int, lookups: int) -> None:
        """The kernel has let an inode go that so many answers had named."""
        # If there were others before, one of these may be on its way yet.
        if self._entries.get(ino, 0) + self._older.get(ino, 0) == lookups:
            self._entries.pop(ino, None)
            self._older.pop(ino, None)

    def _age(self) -> None:
        """Forgets what was named more than two ENTRY_AGE ago."""
        now = time.monotonic()
        if now > self._turn:
            self._older = self._entries if now < self._turn + ENTRY_AGE else {}
            self._entries = {}
            self._turn = now + ENTRY_AGE

    def listed(self, handle: int, directory: Ino, inos: set[Ino]) -> None:
        """Names, or attributes of these inodes, to rely on were answered to a reader."""
        self._listings[handle] = _Listing(directory, inos, time.monotonic())

    def taken_over(self, handle: int) -> None:
        """The reader asks for more, or has ended: the kernel is done with the last answer."""
        self._listings.pop(handle, None)

    async def drop(self, directories: Sequence[Ino], inos: set[Ino]) -> None:
        """Returns when the kernel relies on nothing of these directories and inodes any more."""
        if directories:
            self.drop_names()
        await self._drop_coming(self.drop_attributes(inos))
        before = {
            handle: listing
            for handle, listing in self._listings.items()
            if listing.directory in directories
        }
        if not before:
            return
        # What is listed from now on tells nothing to rely on: the lease is gone.
        while True:
            if not self._under_way(before):
                break
            await asyncio.sleep(_PAUSE)
        self.drop_names()
        await self._drop_coming(self.drop_attributes(inos))

    async def _drop_coming(self, inos: list[Ino]) -> None:
        """Drops the attributes of inodes that the kernel is about to make."""
        until = time.monotonic() + ENTRY_AGE
        before = {
            handle: listing
            for handle, listing in self._listings.items()
            if not listing.inos.isdisjoint(inos)
        }
        while inos and (time.monotonic() < until or self._under_way(before)):
            await asyncio.sleep(_PAUSE)
            inos = self.drop_attributes(inos)

    def _under_way(self, before: dict[int, _Listing]) -> bool:
        """Whether an answer of these may not have been taken over yet."""
        old = time.monotonic() - LISTING_AGE
        return any(
            listing.at > old and self._listings.get(handle) is listing
            for handle, listing in before.items()
        )

    def _send(self, code: int, payload: bytes) -> bool:
        """False: the kernel does not know the message, or the inode."""
        if self._descriptor < 0:
            return True
        message = _HEADER.pack(_HEADER.size + len(payload), code, 0) + payload
        try:
            os.write(self._descriptor, message)
        except OSError as error:
            # ENOTCONN, ENODEV: the mount is ending.
            if error.errno not in (errno.ENOENT, errno.ENOTCONN, errno.ENODEV, errno.EINVAL):
                raise
            return error.errno not in (errno.ENOENT, errno.EINVAL)
        return True
