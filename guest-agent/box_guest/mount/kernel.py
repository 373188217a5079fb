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
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wrkfs.types import Ino

NOTIFY_INVAL_INODE = 2
NOTIFY_INC_EPOCH = 8
"""Since Linux 6.16."""
ATTRIBUTES_ONLY = -1
"""Offset of an INVAL_INODE that leaves the pages alone; with pages it may wait for their locks."""
_HEADER = struct.Struct("=IiQ")
_INODE = struct.Struct("=Qqq")
LISTING_AGE = 2.0
"""Seconds after which the kernel has taken an answered listing over, whatever was heard since."""
_LISTING_PAUSE = 0.001
DEVICE = "/dev/fuse"


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
    """

    def __init__(self, descriptor: int) -> None:
        """Finds out what this kernel understands; before the first request is answered."""
        self._descriptor = descriptor
        self.forgets_names = self._send(NOTIFY_INC_EPOCH, b"")
        """False: names must not be given to rely on."""
        self._listings: dict[int, tuple[Ino, float]] = {}

    def close(self) -> None:
        """The mount ends: nothing is sent any more."""
        self._descriptor = -1

    def drop_names(self) -> None:
        """The kernel asks again for every name before it uses it."""
        if self.forgets_names:
            self._send(NOTIFY_INC_EPOCH, b"")

    def drop_attributes(self, inos: Iterable[Ino]) -> None:
        """The kernel asks again for the attributes of these inodes before it uses them."""
        for ino in inos:
            self._send(NOTIFY_INVAL_INODE, _INODE.pack(ino, ATTRIBUTES_ONLY, 0))

    def listed(self, handle: int, directory: Ino) -> None:
        """Names to rely on were answered to the reader of a directory."""
        self._listings[handle] = directory, time.monotonic()

    def taken_over(self, handle: int) -> None:
        """The reader asks for more, or has ended: the kernel is done with the last answer."""
        self._listings.pop(handle, None)

    async def drop(self, directories: Sequence[Ino], inos: set[Ino]) -> None:
        """Returns when the kernel relies on nothing of these directories and inodes any more."""
        if directories:
            self.drop_names()
        self.drop_attributes(inos)
        before = {
            handle: listing
            for handle, listing in self._listings.items()
            if listing[0] in directories
        }
        if not before:
            return
        # What is listed from now on tells nothing to rely on: the lease is gone.
        while True:
            if not self._under_way(before):
                break
            await asyncio.sleep(_LISTING_PAUSE)
        self.drop_names()
        self.drop_attributes(inos)

    def _under_way(self, before: dict[int, tuple[Ino, float]]) -> bool:
        """Whether an answer of these may not have been taken over yet."""
        old = time.monotonic() - LISTING_AGE
        return any(
            listing[1] > old and self._listings.get(handle) is listing
            for handle, listing in before.items()
        )

    def _send(self, code: int, payload: bytes) -> bool:
        """False: the kernel does not know the message."""
        if self._descriptor < 0:
            return True
        message = _HEADER.pack(_HEADER.size + len(payload), code, 0) + payload
        try:
            os.write(self._descriptor, message)
        except OSError as error:
            # ENOENT: it does not know the inode; the others: the mount is ending.
            if error.errno not in (errno.ENOENT, errno.ENOTCONN, errno.ENODEV, errno.EINVAL):
                raise
            return error.errno != errno.EINVAL
        return True
