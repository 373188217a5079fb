"""Which files a session holds open: counted here, registered once in the database.

The database keeps one row per (inode, session). The first open of a file makes it, the last release
removes it, together with others a moment later; what is in between costs no write.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wrkfs.types import Ino

DOUBT = 120.0
"""Seconds after which no sending of a call can still be on its way: the call itself has given up
after 60, and whoever looks after the server ends what runs there for 30."""


class OpenFiles:
    """Counts of open handles, and the order of opens and releases of one inode.

    Critical sections: every method runs without an await between reading and changing counts; an
    open of an inode whose last release is on its way waits for it (`settled`).
    """

    def __init__(self) -> None:
        self._counts: dict[Ino, int] = {}
        self._registered: set[Ino] = set()
        self._waiting: set[Ino] = set()
        self._releasing: dict[Ino, asyncio.Future[None]] = {}
        self._creates = 0
        self._released: set[Ino] = set()
        self._doubted_until = 0.0

    def registered(self, ino: Ino) -> bool:
        """True when the database surely holds the row of an open inode."""
        return ino in self._registered

    @property
    def held(self) -> list[Ino]:
        """Inodes that need their row: with an open handle, or with a release that waits, for who
        opens them again relies on it."""
        return [*self._counts, *self._waiting]

    async def settled(self, ino: Ino) -> None:
        """Waits until no release of the inode is on its way."""
        while (pending := self._releasing.get(ino)) is not None:
            await asyncio.shield(pending)

    def add(self, ino: Ino) -> None:
        """Counts a handle before its registration is sent; a release that waits is not sent."""
        self._counts[ino] = self._counts.get(ino, 0) + 1
        if ino in self._waiting:
            self._waiting.discard(ino)
            self._registered.add(ino)

    def confirm(self, ino: Ino) -> None:
        """Notes that the database has the row."""
        if ino in self._counts:
            self._registered.add(ino)

    def drop(self, ino: Ino) -> bool:
        """Takes a handle back; True when it was the last one."""
        left = self._counts.get(ino, 0) - 1
        if left > 0:
            self._counts[ino] = left
            return False
        self._registered.discard(ino)
        return self._counts.pop(ino, None) is not None

    def wait(self, ino: Ino) -> int:
        """The release of an inode with no handle left is to be sent; how many are."""
        self._waiting.add(ino)
        return len(self._waiting)

    def take_waiting(self) -> list[Ino]:
        """What `wait` was told of, once; `begin_release` follows in the same step."""
        taken, self._waiting = list(self._waiting), set()
        return taken

    def begin_release(self, inos: Iterable[Ino]) -> asyncio.Future[None]:
        """Announces that the removal of rows is about to be sent."""
        if self._creates:
            self._released.update(inos)
        future = asyncio.get_running_loop().create_future()
        self._releasing.update(dict.fromkeys(inos, future))
        return future

    def end_release(self, inos: Iterable[Ino], future: asyncio.Future[None]) -> None:
        """Ends what `begin_release` announced, however it went."""
        for ino in inos:
            if self._releasing.get(ino) is future:
                del self._releasing[ino]
        future.set_result(None)

    def doubt(self) -> None:
        """Of some call nobody knows whether it was applied, or still will be."""
        self._doubted_until = asyncio.get_running_loop().time() + DOUBT

    @property
    def doubted(self) -> bool:
        """Whether the database may have rows of inodes that nobody holds."""
        return asyncio.get_running_loop().time() < self._doubted_until

    def stray(self, ino: Ino) -> bool:
        """Whether a row of the database belongs to no handle, nor to an open or a release.

        The row of a create under way may look like one: see `end_create`.
        """
        return not any(ino in some for some in (self._counts, self._releasing, self._waiting))

    def begin_create(self) -> None:
        """A create that may open an existing inode, not yet known which, is on its way."""
        self._creates += 1
        # One that is on its way now may be over when the create is answered.
        self._released.update(self._releasing)

    def end_create(self, ino: Ino | None) -> bool:
        """Ends `begin_create`; True when a release may have removed the row it relied on."""
        doubtful = ino is not None and (ino in self._released or ino in self._releasing)
        self._creates -= 1
        if not self._creates:
            self._released.clear()
        return doubtful
