"""A file system of one file that prints its lock requests: module `tests.harness.mounts.lock_fs`.

It tests the binding alone. The argument is the mount point. The process prints one line for each
request. A lock request that waits is never granted: only an interrupt ends it.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import stat
import sys
from contextlib import suppress

import pyfuse3

from box_guest.mount import loop

FILE_INO = 2


def tell(*words: object) -> None:
    """Print one line for the test."""
    sys.stdout.write(" ".join(str(word) for word in words) + "\n")
    sys.stdout.flush()


class LockFs(pyfuse3.Operations):
    """The handlers."""

    enable_posix_locks = True
    enable_flock = True

    def __init__(self) -> None:
        super().__init__()
        self._owners: dict[int, int] = {}

    def init(self) -> None:
        tell("ready")

    def _named(self, owner: int) -> int:
        """A small number for each owner, in the order of their first requests."""
        return self._owners.setdefault(owner, len(self._owners) + 1)

    async def getattr(self, inode: int, ctx: object = None) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        entry.st_mode = stat.S_IFDIR | 0o755 if inode == 1 else stat.S_IFREG | 0o644
        entry.entry_timeout = entry.attr_timeout = 0
        return entry

    async def lookup(self, parent_inode: int, name: bytes, ctx: object) -> pyfuse3.EntryAttributes:
        if name != b"file":
            raise pyfuse3.FUSEError(errno.ENOENT)
        return await self.getattr(FILE_INO)

    async def open(self, inode: int, flags: int, ctx: object) -> pyfuse3.FileInfo:
        return pyfuse3.FileInfo(fh=7)

    async def getlk(
        self, inode: int, fh: int, owner: int, lock: pyfuse3.FileLock, ctx: object
    ) -> pyfuse3.FileLock | None:
        tell("getlk", fh, self._named(owner), lock.type, lock.start, lock.length)
        return None if lock.start else pyfuse3.FileLock(fcntl.F_WRLCK, 5, 10, 77)

    async def setlk(
        self,
        inode: int,
        fh: int,
        owner: int,
        lock: pyfuse3.FileLock,
        sleep: bool,
        interrupt: pyfuse3.Interrupt,
        ctx: object,
    ) -> None:
        tell("setlk", fh, self._named(owner), lock.type, lock.start, lock.length, int(sleep))
        if sleep and lock.type == fcntl.F_WRLCK:
            await self._wait(interrupt)

    async def flock(
        self,
        inode: int,
        fh: int,
        owner: int,
        operation: int,
        interrupt: pyfuse3.Interrupt,
        ctx: object,
    ) -> None:
        tell("flock", fh, self._named(owner), operation)
        if operation == fcntl.LOCK_EX:
            await self._wait(interrupt)

    async def _wait(self, interrupt: pyfuse3.Interrupt) -> None:
        event = asyncio.Event()
        interrupt.on_interrupt(event.set)
        await event.wait()
        assert interrupt.interrupted
        tell("interrupted")
        raise pyfuse3.FUSEError(errno.EINTR)

    async def flush_locked(self, inode: int, fh: int, owner: int) -> None:
        tell("flush", fh, self._named(owner))

    async def release_locked(self, inode: int, fh: int, owner: int | None) -> None:
        tell("release", fh, owner is not None and self._named(owner))


async def _main(directory: str) -> None:
    loop.enable()
    pyfuse3.init(LockFs(), directory, {"fsname=locks", "default_permissions"})
    try:
        await pyfuse3.main()
    finally:
        with suppress(OSError):
            pyfuse3.close(unmount=os.path.ismount(directory))


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
