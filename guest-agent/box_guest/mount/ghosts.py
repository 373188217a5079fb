"""Attributes of inodes that have lost their last name here and that a program may still hold.

A working directory, a directory or fifo that is open, a descriptor made with O_PATH: the kernel
keeps those without telling, and asks for their attributes by number. The store has freed them.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wrkfs.types import Attr, Ino

SEEN_MAX = 1024
"""Names whose last look-up is remembered: the kernel looks a name up before it removes it."""
GHOSTS_MAX = 4096
"""Inodes without name that are remembered; the kernel's FORGET ends one earlier."""


class Ghosts:
    """What to answer for an inode that is gone. Bounded; what is forgotten is ESTALE as ever."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[int, bytes], Attr] = OrderedDict()
        self._ghosts: OrderedDict[int, Attr] = OrderedDict()

    def saw(self, parent: int, name: bytes, attr: Attr) -> Attr:
        """Notes what a look-up has found, and gives it back."""
        self._seen[parent, name] = attr
        self._seen.move_to_end((parent, name))
        if len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)
        return attr

    def removed(self, parent: int, name: bytes) -> None:
        """A name is gone, or stands for something else now."""
        attr = self._seen.pop((parent, name), None)
        if attr is None:
            return
        self._ghosts[attr.ino] = replace(attr, nlink=0, ctime_ns=time.time_ns())
        if len(self._ghosts) > GHOSTS_MAX:
            self._ghosts.popitem(last=False)

    def forget(self, ino: int) -> None:
        """The kernel does not know the inode any more."""
        self._ghosts.pop(ino, None)

    def find(self, ino: Ino) -> Attr | None:
        """Attributes of an inode that the store does not have; None: never seen here."""
        return self._ghosts.get(ino)
