"""Invalidates what the kernel was allowed to cache, by messages that never block.

This module writes the messages to the descriptor of /dev/fuse itself, because pyfuse3's own helpers
may block. Numbers and layouts are those of <linux/fuse.h>.
"""

from __future__ import annotations

import asyncio
import errno
import os
import struct
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from wrkfs.types import Ino

NOTIFY_INVAL_INODE = 2
NOTIFY_INC_EPOCH = 8
"""Notification that Linux supports since 6.16."""
ATTRIBUTES_ONLY = -1
"""Offset of an INVAL_INODE that leaves the pages alone; with pages, it may wait for their locks."""
_HEADER = struct.Struct("=IiQ")
_INODE = struct.Struct("=Qqq")
ENTRY_AGE = 0.1
"""Seconds after which the kernel has processed an answer with a name."""
LISTING_AGE = 2.0
"""Seconds after which the kernel has processed a listing, whatever has arrived since."""
LOOKUPS_MAX = 65_536
"""Maximum number of inodes whose look-ups are counted: the most recently answered, about 8 MB."""
_RECEIPT_AND_ONE = 2
"""Number of answers if one answer besides the receipt has named an inode. The FORGET of either
counts one look-up."""
_PAUSE = 0.001
DEVICE = "/dev/fuse"


@dataclass(slots=True, eq=False)
class _Listing:
    """An answer to a directory's reader.

    - `inos`: the inodes whose attributes the answer lets the kernel cache.
    - `at`: time of the answer (seconds, monotonic); earlier if it has less time left than others.
    - `receipt`: the inode whose FORGET means that the kernel has processed the answer.
    - `doubtful`: another answer has named that inode since; the kernel may reject that answer, too.
    """

    directory: Ino
    inos: set[Ino]
    at: float
    receipt: Ino | None
    doubtful: bool = False


def device_descriptor() -> int:
    """Return the descriptor that pyfuse3 serves. Raises LookupError before `pyfuse3.init`."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if os.readlink(entry) == DEVICE:
                return int(entry.name)
        except FileNotFoundError:
            continue
    raise LookupError(f"{DEVICE} is not open")


class Kernel:
    """The kernel's caches of one mount.

    The kernel links the names of a listing after the answer, and treats them as valid from that
    moment. So an invalidation of names must wait for listings in progress, and then invalidate the
    names again. A listing is in progress until its receipt arrives, the same reader requests more,
    or the reader ends.

    Attributes of an unknown inode arrive with a name. The kernel creates the inode after the answer
    was sent, and then stores the attributes, regardless of earlier invalidations. So the
    invalidation of attributes is retried until the inode exists, or the answer is so old that the
    inode must have existed. Attributes in a listing follow the same rule as its names.
    """

    def __init__(self, descriptor: int) -> None:
        """Detect what this kernel supports. Must run before the first request is answered."""
        self._descriptor = descriptor
        self.forgets_names = self._send(NOTIFY_INC_EPOCH, b"")
        """False: answers must not allow the kernel to cache names."""
        self._listings: dict[int, _Listing] = {}
        self._receipts: dict[int, int] = {}
        """Readers by the inode whose FORGET is the receipt of their last answer."""
        self._lookups: OrderedDict[int, int] = OrderedDict()
        """Number of answers that have named an inode since the kernel forgot it."""
        self._uncounted = 0
        """The highest inode whose count was dropped: counts up to this inode may be too low."""
        self._entries: dict[int, int] = {}
        self._older: dict[int, int] = {}
        self._turn = 0.0

    def close(self) -> None:
        """Stop sending, because the mount ends."""
        self._descriptor = -1

    def drop_names(self) -> None:
        """Make the kernel look up every name again before it uses it."""
        if self.forgets_names:
            self._send(NOTIFY_INC_EPOCH, b"")

    def drop_attributes(self, inos: Iterable[Ino]) -> list[Ino]:
        """Make the kernel request the attributes of these inodes again before it uses them.

        Returns the inodes for which that was not possible: the kernel does not know them yet, but
        may be about to.
        """
        # Old records are useless here, and would look like recent ones.
        self._age()
        old = time.monotonic() - LISTING_AGE
        named: list[Container[int]] = [self._entries, self._older]
        named += [listing.inos for listing in self._listings.values() if listing.at > old]
        coming = []
        for ino in inos:
            delivered = self._send(NOTIFY_INVAL_INODE, _INODE.pack(ino, ATTRIBUTES_ONLY, 0))
            if not delivered and any(ino in container for container in named):
                coming.append(ino)
        return coming

    def named(self, ino: int) -> None:
        """Record an answer with a name and cacheable attributes, whose inode the kernel may not
        know yet."""
        self.answered(ino)
        if time.monotonic() > self._turn:
            self._age()
        self._entries[ino] = self._entries.get(ino, 0) + 1

    def answered(self, ino: int) -> None:
        """Record that an answer names an inode.

        The kernel counts it; a later FORGET reports the sum.
        """
        self._lookups[ino] = self._lookups.get(ino, 0) + 1
        self._lookups.move_to_end(ino)
        if len(self._lookups) > LOOKUPS_MAX:
            self._uncounted = max(self._uncounted, self._lookups.popitem(last=False)[0])
        handle = self._receipts.get(ino)
        if handle is not None:
            self._listings[handle].doubtful = True

    def forgot(self, ino: int, lookups: int) -> bool:
        """Process a FORGET of `lookups` answers that named the inode.

        Returns whether the kernel has released the inode. A receipt releases only its own answer.
        """
        answers, is_exact = self._lookups.pop(ino, 0), ino > self._uncounted
        remaining = answers - lookups
        if remaining > 0:
            self._lookups[ino] = remaining
        elif remaining == 0 and is_exact:
            # No answer in flight can contain attributes of this inode.
            self._entries.pop(ino, None)
            self._older.pop(ino, None)
        handle = self._receipts.get(ino) if lookups == 1 else None
        if handle is None:
            return True
        is_low = not is_exact and answers < _RECEIPT_AND_ONE
        if answers == _RECEIPT_AND_ONE or is_low or self._listings[handle].doubtful:
            self._soon_taken_over(handle)
        else:
            self.taken_over(handle)
        return False

    def _age(self) -> None:
        """Drop records of names that are older than two ENTRY_AGE."""
        now = time.monotonic()
        if now > self._turn:
            self._older = self._entries if now < self._turn + ENTRY_AGE else {}
            self._entries = {}
            self._turn = now + ENTRY_AGE

    def listed(
        self, handle: int, directory: Ino, inos: set[Ino], receipt: Ino | None = None
    ) -> None:
        """Record a listing whose names, or attributes of `inos`, the kernel may cache."""
        self._listings[handle] = _Listing(directory, inos, time.monotonic(), receipt)
        if receipt is not None:
            self._receipts[receipt] = handle

    def can_receive(self, ino: int) -> bool:
        """Return whether a FORGET of the inode can be a receipt: no other listing waits for one."""
        return ino not in self._receipts

    def taken_over(self, handle: int) -> None:
        """Record that the kernel has processed the last answer: the reader requests more, or has
        ended."""
        listing = self._listings.pop(handle, None)
        if listing is not None and listing.receipt is not None:
            del self._receipts[listing.receipt]

    def _soon_taken_over(self, handle: int) -> None:
        """Handle a FORGET of one look-up that may not be a receipt. Two other events cause it too.

        The kernel ends an inode that one answer had named, for example when a program removes the
        file. Or the kernel rejects an answer to a LOOKUP, because the name belonged to another
        inode there. So the listing counts as processed after ENTRY_AGE, or with a FORGET that must
        be the receipt.
        """
        listing = self._listings[handle]
        listing.at = min(listing.at, time.monotonic() - LISTING_AGE + ENTRY_AGE)

    async def drop(self, directories: Sequence[Ino], inos: set[Ino]) -> None:
        """Invalidate directories and inodes; return when the kernel caches nothing of them."""
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
        # Listings from now on allow no caching: the lease is gone.
        while True:
            if not self._under_way(before):
                break
            await asyncio.sleep(_PAUSE)
        self.drop_names()
        await self._drop_coming(self.drop_attributes(inos))

    async def drop_pages(self, ino: Ino) -> None:
        """Make the kernel drop all pages of a file; return when it has.

        The message may wait for pages that this process is reading or writing, so a thread sends
        it.
        """
        await asyncio.to_thread(self._send, NOTIFY_INVAL_INODE, _INODE.pack(ino, 0, 0))

    async def _drop_coming(self, inos: list[Ino]) -> None:
        """Drop the attributes of inodes that the kernel is about to create."""
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
        """Return whether the kernel may not have processed one of these answers yet."""
        old = time.monotonic() - LISTING_AGE
        return any(
            listing.at > old and self._listings.get(handle) is listing
            for handle, listing in before.items()
        )

    def _send(self, code: int, payload: bytes) -> bool:
        """Send a message. Return False if the kernel does not know the message or the inode."""
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
