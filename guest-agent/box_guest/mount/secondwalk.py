"""Holds the inodes that the kernel finds when it walks a path for the second time.

The kernel asks for a name (LOOKUP), and then for the inode by number (GETATTR, OPEN, ...). If
another host removes the inode in between, the mount answers ESTALE, and the kernel walks the path
once more (LOOKUP_REVAL: it asks for every name). It does so once per call: a second ESTALE would
reach the program. So the mount holds the inodes of the second walk until the program uses them: a
file like an open one, a symbolic link with its target, anything else by its attributes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import time
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wrkfs.errors import NotFound, WrkfsError

if TYPE_CHECKING:
    from wrkfs.fs import Filesystem
    from wrkfs.handle import FileHandle
    from wrkfs.types import Attr, Ino

WALK_TIME = 1.0
"""Seconds after an ESTALE in which look-ups of the same thread count as the second walk."""
HOLD_TIME = 5.0
"""Seconds after which a walk releases its inodes, if no OPEN has used them."""
WALKS_MAX = 256
"""Maximum number of threads whose second walk is remembered."""
HELD_MAX = 64
"""Maximum number of inodes that one walk holds."""
TRIES = 100
"""Maximum number of look-ups of a name whose inode disappears each time before it is held."""


@dataclass(frozen=True, slots=True)
class _HeldInode:
    """An inode: its attributes, and what holds it."""

    attr: Attr
    handle: FileHandle | None = None
    target: bytes | None = None


@dataclass(slots=True)
class _Walk:
    """The second walk of one thread of the host."""

    until: float
    inodes: OrderedDict[Ino, _HeldInode] = field(default_factory=OrderedDict)
    ended: bool = False


class SecondWalks:
    """The second walks of one mount, by thread.

    Threads that the mount cannot see (in another pid namespace) have number 0 and share one walk.
    """

    def __init__(self, fs: Filesystem) -> None:
        self._fs = fs
        self._walks: OrderedDict[int, _Walk] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def begin(self, thread: int) -> None:
        """Start a second walk: the mount is about to answer ESTALE to this thread."""
        until = time.monotonic() + WALK_TIME
        walk = self._walks.get(thread)
        if walk is not None:
            walk.until = until
            return
        self._walks[thread] = walk = _Walk(until)
        asyncio.get_running_loop().call_later(HOLD_TIME, self._end, thread, walk)
        if len(self._walks) > WALKS_MAX:
            self._end(*next(iter(self._walks.items())))

    def end(self, thread: int) -> None:
        """End the walk: the thread has opened its file."""
        walk = self._walks.get(thread)
        if walk is not None:
            self._end(thread, walk)

    async def lookup(self, thread: int, parent: Ino, name: bytes) -> Attr:
        """Return the attributes of a name; in a second walk, hold its inode. Raises NotFound."""
        walk = self._walks.get(thread)
        if walk is None or time.monotonic() > walk.until:
            return await self._fs.lookup(parent, name)
        for _ in range(TRIES):
            attr = await self._fs.lookup(parent, name)
            if walk.ended or attr.ino in walk.inodes:
                return attr
            try:
                inode = await self._hold(attr)
            except NotFound:
                continue
            self._put(walk, inode)
            return attr
        return await self._fs.lookup(parent, name)

    def attributes(self, thread: int, ino: Ino) -> Attr | None:
        """Return the attributes of an unlinked inode held by this thread's second walk, or None."""
        inode = self._inode(thread, ino)
        return None if inode is None else replace(inode.attr, nlink=0)

    def target(self, thread: int, ino: Ino) -> bytes | None:
        """Return the target of a symbolic link that this thread's second walk holds, or None."""
        inode = self._inode(thread, ino)
        return None if inode is None else inode.target

    def _inode(self, thread: int, ino: Ino) -> _HeldInode | None:
        walk = self._walks.get(thread)
        return None if walk is None else walk.inodes.get(ino)

    async def _hold(self, attr: Attr) -> _HeldInode:
        """Hold an inode. Raises NotFound if it has disappeared."""
        if stat.S_ISREG(attr.mode):
            return _HeldInode(attr, handle=await self._fs.open(attr.ino, os.O_RDONLY))
        if stat.S_ISLNK(attr.mode):
            return _HeldInode(attr, target=await self._fs.readlink(attr.ino))
        return _HeldInode(attr)

    def _put(self, walk: _Walk, inode: _HeldInode) -> None:
        if walk.ended:
            self._let_go(inode)
            return
        before = walk.inodes.pop(inode.attr.ino, None)
        if before is not None:
            self._let_go(before)
        walk.inodes[inode.attr.ino] = inode
        if len(walk.inodes) > HELD_MAX:
            self._let_go(walk.inodes.popitem(last=False)[1])

    def _end(self, thread: int, walk: _Walk) -> None:
        if walk.ended:
            return
        walk.ended = True
        del self._walks[thread]
        for inode in walk.inodes.values():
            self._let_go(inode)

    def _let_go(self, inode: _HeldInode) -> None:
        if inode.handle is not None:
            task = asyncio.ensure_future(_close(inode.handle))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


async def _close(handle: FileHandle) -> None:
    """Close the handle. Nothing was written through it, so an error here concerns no caller."""
    with contextlib.suppress(WrkfsError):
        await handle.close(flushed=True)
