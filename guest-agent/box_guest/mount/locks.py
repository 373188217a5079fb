"""Lock requests of the kernel: fcntl(2) and flock(2), passed to the locks of the drive.

The kernel names the owner of a lock by a number of 64 bits. Of an fcntl lock it is the process's
table of descriptors, or the open file (F_OFD_SETLK). It does not say which of the two. The kernel
reports the close of a descriptor by FLUSH, with the process as owner, and the end of an open file
by RELEASE. So FLUSH ends the locks of a process, and RELEASE those of owners that have used only
this open file.
"""

from __future__ import annotations

import asyncio
import fcntl
from pathlib import Path
from typing import TYPE_CHECKING

from wrkfs.errors import InvalidArgument
from wrkfs.types import LOCK_END, Ino, LockMode, LockOwner, LockRequest, LockSpace

if TYPE_CHECKING:
    # Only a binding that passes requests for locks has these names.
    from pyfuse3 import FileLock, Interrupt

    from wrkfs.handle import FileHandle
    from wrkfs.locks.manager import LockManager

_MODES = {
    fcntl.F_UNLCK: LockMode.UNLOCK,
    fcntl.F_RDLCK: LockMode.SHARED,
    fcntl.F_WRLCK: LockMode.EXCLUSIVE,
}
_TYPES = {mode: number for number, mode in _MODES.items()}
_OPERATIONS = {
    fcntl.LOCK_UN: LockMode.UNLOCK,
    fcntl.LOCK_SH: LockMode.SHARED,
    fcntl.LOCK_EX: LockMode.EXCLUSIVE,
}
_OFD_COMMANDS = frozenset({fcntl.F_OFD_SETLKW, fcntl.F_OFD_SETLK})
_OWNER_MASK = (1 << 64) - 1


class LockRequests:
    """Translates requests of the kernel into requests of the drive."""

    def __init__(self, locks: LockManager) -> None:
        self._locks = locks

    async def get(self, handle: FileHandle, owner: int, lock: FileLock) -> FileLock | None:
        """GETLK: return a conflicting lock; its process is 0 if it runs on another host."""
        conflict = await self._locks.test(handle, _ranged(handle.ino, owner, lock))
        if conflict is None:
            return None
        other, is_here = conflict
        length = 0 if other.last == LOCK_END else other.last - other.first + 1
        pid = other.pid if is_here else 0
        return lock._replace(type=_TYPES[other.mode], start=other.first, length=length, pid=pid)

    async def set(
        self,
        handle: FileHandle,
        owner: int,
        lock: FileLock,
        interrupted: asyncio.Event | None,
        thread: int,
    ) -> None:
        """SETLK, and SETLKW with an event that a signal sets. `thread` made the request."""
        request = _ranged(handle.ino, owner, lock)
        is_process = interrupted is not None and not _waits_for_open_file(thread)
        await self._locks.set(handle, request, interrupted=interrupted, is_process=is_process)

    async def flock(
        self, handle: FileHandle, owner: int, operation: int, interrupt: Interrupt
    ) -> None:
        """flock(2)."""
        mode = _OPERATIONS.get(operation & ~fcntl.LOCK_NB)
        if mode is None:
            raise InvalidArgument("unknown operation of flock")
        lock_owner = LockOwner(LockSpace.WHOLE_FILE, owner & _OWNER_MASK)
        event = None if operation & fcntl.LOCK_NB else interruption(interrupt)
        await self._locks.set(handle, LockRequest(handle.ino, lock_owner, mode), interrupted=event)

    async def flushed(self, ino: Ino, owner: int) -> None:
        """FLUSH: a process has closed a descriptor, and so loses its locks of the file."""
        await self._locks.end_owner(ino, LockOwner(LockSpace.RANGES, owner & _OWNER_MASK))

    async def released(self, handle: FileHandle) -> None:
        """RELEASE: the open file has ended."""
        await self._locks.end_handle(handle)


def interruption(interrupt: Interrupt) -> asyncio.Event:
    """Return an event that is set when a signal interrupts the request."""
    event = asyncio.Event()
    interrupt.on_interrupt(event.set)
    return event


def _ranged(ino: Ino, owner: int, lock: FileLock) -> LockRequest:
    """Return the request of an fcntl lock. Raises InvalidArgument for an unknown type."""
    number, first, length, pid = lock
    mode = _MODES.get(number)
    if mode is None:
        raise InvalidArgument("unknown type of lock")
    last = first + length - 1 if length else LOCK_END
    lock_owner = LockOwner(LockSpace.RANGES, owner & _OWNER_MASK)
    return LockRequest(ino, lock_owner, mode, first, last, max(pid, 0))


def _waits_for_open_file(thread: int) -> bool:
    """Return True if a thread waits in fcntl(F_OFD_SETLKW), whose owner is not a process.

    The thread is stopped in its system call while the mount answers.
    """
    try:
        fields = Path(f"/proc/{thread}/syscall").read_text(encoding="ascii").split()
        return int(fields[2], 16) in _OFD_COMMANDS
    except (OSError, ValueError, IndexError):
        return False
