"""The open files of a session, counted in memory and registered once in the database.

The database has one row per (inode, session). The first open of a file inserts the row. The last
release deletes it a moment later, together with others. Opens and releases in between cost no
write.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wrkfs.types import Ino

DOUBT = 120.0
"""Seconds after which no copy of a call can still be on its way. The call itself gives up after 60,
and the daemon that supervises the server ends statements that run for 30."""


class OpenFiles:
    """Numbers of open handles, and the order of opens and releases of one inode.

    Critical sections: no method awaits between reading and changing a number. An open of an inode
    waits while the last release of that inode is on its way (`settled`).
    """

    def __init__(self) -> None:
        self._counts: dict[Ino, int] = {}
        self._registered: set[Ino] = set()
        self._waiting: set[Ino] = set()
        self._releasing: dict[Ino, asyncio.Future[None]] = {}
        self._creates = 0
        self._released: set[Ino] = set()
        self._doubted_until = 0.0

    def __contains__(self, ino: Ino) -> bool:
        return ino in self._counts

    def registered(self, ino: Ino) -> bool:
        """Return True if the database certainly has the row of an open inode."""
        return ino in self._registered

    @property
    def held(self) -> list[Ino]:
        """Inodes that need their row: with an open handle, or with a release that waits.

        An open that overtakes the waiting release relies on the row.
        """
        return [*self._counts, *self._waiting]

    async def settled(self, ino: Ino) -> None:
        """Wait until no release of the inode is on its way."""
        while (pending := self._releasing.get(ino)) is not None:
            await asyncio.shield(pending)

    def add(self, ino: Ino) -> None:
        """Add a handle before its registration is sent; cancels a release that waits."""
        self._counts[ino] = self._counts.get(ino, 0) + 1
        if ino in self._waiting:
            self._waiting.discard(ino)
            self._registered.add(ino)

    def confirm(self, ino: Ino) -> None:
        """Record that the database has the row."""
        if ino in self._counts:
            self._registered.add(ino)

    def drop(self, ino: Ino) -> bool:
        """Remove a handle. Return True if it was the last one."""
        remaining = self._counts.get(ino, 0) - 1
        if remaining > 0:
            self._counts[ino] = remaining
            return False
        self._registered.discard(ino)
        return self._counts.pop(ino, None) is not None

    def wait(self, ino: Ino) -> int:
        """Queue the release of an inode without handles. Return the length of the queue."""
        self._waiting.add(ino)
        return len(self._waiting)

    def take_waiting(self) -> list[Ino]:
        """Empty the queue of `wait`; the caller calls `begin_release` in the same step."""
        inos, self._waiting = list(self._waiting), set()
        return inos

    def begin_release(self, inos: Iterable[Ino]) -> asyncio.Future[None]:
        """Register a request to remove rows before it is sent."""
        if self._creates:
            self._released.update(inos)
        future = asyncio.get_running_loop().create_future()
        self._releasing.update(dict.fromkeys(inos, future))
        return future

    def end_release(self, inos: Iterable[Ino], future: asyncio.Future[None]) -> None:
        """End the release that `begin_release` registered, whether it succeeded or not."""
        for ino in inos:
            if self._releasing.get(ino) is future:
                del self._releasing[ino]
        future.set_result(None)

    def doubt(self) -> None:
        """Record that the outcome of some call is unknown: it may still take effect."""
        self._doubted_until = asyncio.get_running_loop().time() + DOUBT

    @property
    def doubted(self) -> bool:
        """True if the database may have rows of inodes without handles."""
        return asyncio.get_running_loop().time() < self._doubted_until

    def stray(self, ino: Ino) -> bool:
        """Return True if a row belongs to no handle, and to no open or release under way.

        The row of a create under way may look stray: see `end_create`.
        """
        return not any(ino in inos for inos in (self._counts, self._releasing, self._waiting))

    def begin_create(self) -> None:
        """Register a create on its way, which may open an existing inode that is not known yet."""
        self._creates += 1
        # A release that is on its way now may have ended when the create is answered.
        self._released.update(self._releasing)

    def end_create(self, ino: Ino | None) -> bool:
        """End `begin_create`. Return True if a release may have deleted the row it relied on."""
        doubtful = ino is not None and (ino in self._released or ino in self._releasing)
        self._creates -= 1
        if not self._creates:
            self._released.clear()
        return doubtful
