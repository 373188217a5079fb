"""Attributes of inodes whose last name was removed here, but which a program may still hold.

Examples are a working directory, an open directory or fifo, a descriptor opened with O_PATH. The
kernel keeps these without telling the file system and asks for their attributes by number. The
store has already freed them.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wrkfs.types import Attr, Ino

SEEN_MAX = 1024
"""Maximum number of names whose last look-up is remembered: the kernel looks a name up before it
removes it."""
GHOSTS_MAX = 4096
"""Maximum number of unlinked inodes that are remembered; the kernel's FORGET ends one earlier."""


class UnlinkedInodes:
    """Attributes of unlinked inodes. Bounded; a forgotten inode gives ESTALE as usual."""

    def __init__(self) -> None:
        self._lookups: OrderedDict[tuple[int, bytes], Attr] = OrderedDict()
        self._ghosts: OrderedDict[int, Attr] = OrderedDict()

    def saw(self, parent: int, name: bytes, attr: Attr) -> Attr:
        """Record the result of a look-up, and return it."""
        self._lookups[parent, name] = attr
        self._lookups.move_to_end((parent, name))
        if len(self._lookups) > SEEN_MAX:
            self._lookups.popitem(last=False)
        return attr

    def removed(self, parent: int, name: bytes) -> None:
        """Record that a name was removed, or now refers to another inode."""
        attr = self._lookups.pop((parent, name), None)
        if attr is None:
            return
        self._ghosts[attr.ino] = replace(attr, nlink=0, ctime_ns=time.time_ns())
        if len(self._ghosts) > GHOSTS_MAX:
            self._ghosts.popitem(last=False)

    def forget(self, ino: int) -> None:
        """Drop an inode that the kernel has forgotten."""
        self._ghosts.pop(ino, None)

    def find(self, ino: Ino) -> Attr | None:
        """Return the attributes of an inode that the store does not have.

        None means that this mount never saw the inode, or has forgotten it.
        """
        return self._ghosts.get(ino)
