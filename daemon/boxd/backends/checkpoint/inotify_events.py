"""Detects unread inotify events in a frozen box, which CRIU would drop.

A box with unread events is not suspended, because its program will read them in a moment. A program
that never reads would keep its box awake forever. So events stop counting if no process has read
from the descriptor for PATIENCE. CRIU then drops them.
"""

from __future__ import annotations

import fcntl
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.backends.host.descriptors import borrowed, referring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

PATIENCE = 600.0
"""Seconds without a read after which the unread events of a descriptor no longer count."""
_FORGOTTEN = 24 * 3600.0
"""Seconds after which the record of a box expires."""
_FIONREAD = 0x541B

Key = tuple[int, int]
"""Process and descriptor."""


@dataclass(frozen=True, slots=True)
class _Backlog:
    """Unread bytes, and the time since which the number has not decreased."""

    size: int
    since: float


class Notifications:
    """Unread events at earlier suspend attempts, by box."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._backlogs: dict[str, dict[Key, _Backlog]] = {}

    def waiting(self, box_id: str, sizes: Mapping[Key, int]) -> Key | None:
        """Return a descriptor with unread events that count, or None.

        `sizes` are the bytes of all unread events.
        """
        now = self._monotonic()
        previous = self._backlogs.pop(box_id, {})
        self._expire(now)
        backlogs = {}
        for key, size in sizes.items():
            earlier = previous.get(key)
            since = earlier.since if earlier is not None and earlier.size <= size else now
            backlogs[key] = _Backlog(size, since)
        if backlogs:
            self._backlogs[box_id] = backlogs
        recent = [key for key, backlog in backlogs.items() if now - backlog.since < PATIENCE]
        return min(recent, default=None)

    def _expire(self, now: float) -> None:
        for box_id, backlogs in list(self._backlogs.items()):
            if all(now - backlog.since > _FORGOTTEN for backlog in backlogs.values()):
                del self._backlogs[box_id]


def unread(pids: Iterable[int]) -> dict[Key, int]:
    """Return the bytes of unread events, by process and descriptor."""
    sizes = {}
    for pid in pids:
        for descriptor in referring(pid, "anon_inode:inotify"):
            if size := _unread(pid, descriptor):
                sizes[pid, descriptor] = size
    return sizes


def _unread(pid: int, descriptor: int) -> int:
    """Return the bytes of unread events; 0 if the process or its descriptor no longer exists."""
    with suppress(OSError), borrowed(pid, descriptor) as copy:
        (size,) = struct.unpack("i", fcntl.ioctl(copy, _FIONREAD, bytes(4)))
        return int(size)
    return 0
