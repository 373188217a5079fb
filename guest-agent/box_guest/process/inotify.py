"""The kernel's inotify interface: watches of directories and their events."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MODIFY = 0x2
ATTRIB = 0x4
CLOSE_WRITE = 0x8
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
DELETE_SELF = 0x400
MOVE_SELF = 0x800
UNMOUNT = 0x2000
Q_OVERFLOW = 0x4000
IGNORED = 0x8000
ONLYDIR = 0x1000000
DONT_FOLLOW = 0x2000000
EXCL_UNLINK = 0x4000000
ISDIR = 0x40000000

DIRECTORY = (
    MODIFY | ATTRIB | MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF | MOVE_SELF
) | (ONLYDIR | DONT_FOLLOW | EXCL_UNLINK)
"""Events of a directory and of the entries in it."""
READ = 64 * 1024
"""Bytes of events that one read returns at most."""

_HEAD = struct.Struct("iIII")


@dataclass(frozen=True, slots=True)
class Event:
    """One event: the number of the watch, the mask, the cookie of a move, and the entry's name."""

    watch: int
    mask: int
    cookie: int
    name: bytes


class Inotify:
    """One inotify instance."""

    def __init__(self) -> None:
        """Raises OSError, for example if the user has too many instances."""
        self._library = ctypes.CDLL(None, use_errno=True)
        self.descriptor = self._library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise _error()

    def add(self, path: bytes) -> int:
        """Watch a directory. Return the number of the watch. Raises OSError."""
        watch: int = self._library.inotify_add_watch(self.descriptor, path, DIRECTORY)
        if watch < 0:
            raise _error()
        return watch

    def remove(self, watch: int) -> None:
        """Remove a watch. No error if the kernel has removed it already."""
        self._library.inotify_rm_watch(self.descriptor, watch)

    def read(self) -> Iterator[Event]:
        """Yield the events that have happened, at most READ bytes of them."""
        try:
            data = os.read(self.descriptor, READ)
        except BlockingIOError:
            return
        offset = 0
        while offset < len(data):
            watch, mask, cookie, size = _HEAD.unpack_from(data, offset)
            offset += _HEAD.size
            yield Event(watch, mask, cookie, data[offset : offset + size].rstrip(b"\0"))
            offset += size

    def close(self) -> None:
        """Close the instance and its watches."""
        os.close(self.descriptor)


def _error() -> OSError:
    number = ctypes.get_errno() or errno.EIO
    return OSError(number, os.strerror(number))
