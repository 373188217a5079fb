"""Open files that the database was not told of, because a lease covers them.

Nobody else takes the last name of such a file away without asking for the lease first; then, and
before an own change does, the database is told (`sustain`), and the file keeps its bytes until the
last close like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from wrkfs.errors import Fenced, NotFound, WrkfsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wrkfs.meta.leases import LeaseStore
    from wrkfs.types import Ino

SETTLE = 2.0
"""Seconds after which a file that is still open is told: a host that stands still keeps it then."""


class LightOpens:
    """Counts of light handles by inode.

    Critical section: an inode is in `_told` only while it has light handles; the database holds one
    row for all of them, which the last release removes.
    """

    def __init__(self, inner: LeaseStore) -> None:
        self._inner = inner
        self._counts: dict[Ino, int] = {}
        self._since: dict[Ino, float] = {}
        self._told: set[Ino] = set()
        self._telling: dict[Ino, asyncio.Task[None]] = {}
        self._barred = 0
        self._clock: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to tell of files that stay open."""
        self._clock = asyncio.create_task(self._settle(), name="wrkfs opens")

    async def close(self) -> None:
        """Ends that."""
        if self._clock is not None:
            self._clock.cancel()
            await asyncio.gather(self._clock, return_exceptions=True)

    def clear(self) -> None:
        """Nothing is open any more: a new epoch begins."""
        self._counts.clear()
        self._since.clear()
        self._told.clear()

    def __contains__(self, ino: Ino) -> bool:
        return ino in self._counts

    @property
    def all(self) -> list[Ino]:
        """Inodes with light handles."""
        return list(self._counts)

    @property
    def fresh(self) -> list[Ino]:
        """Those of which the database may know nothing yet."""
        return list(self._since)

    @property
    def allowed(self) -> bool:
        """Whether a handle may be light now; see `barred`."""
        return not self._barred

    @contextmanager
    def barred(self) -> Iterator[None]:
        """In the body names are taken away: what is opened meanwhile is told at once."""
        self._barred += 1
        try:
            yield
        finally:
            self._barred -= 1

    def add(self, ino: Ino) -> None:
        """One more handle; a lease covers the file."""
        self._counts[ino] = self._counts.get(ino, 0) + 1
        self._since.setdefault(ino, time.monotonic())

    async def release(self, ino: Ino) -> bool:
        """Takes a handle back; False: there is no light one. Errors as `MetaStore.release`."""
        left = self._counts.get(ino, 0) - 1
        if left < 0:
            return False
        if left:
            self._counts[ino] = left
            return True
        del self._counts[ino]
        self._since.pop(ino, None)
        task = self._telling.get(ino)
        if task is not None:
            with contextlib.suppress(WrkfsError):
                await asyncio.shield(task)
        if ino in self._told and ino not in self._counts:
            self._told.discard(ino)
            await self._inner.release(ino)
        return True

    async def sustain(self, inos: Iterable[Ino]) -> None:
        """Tells the database of those of these files that are open. Unavailable: not known."""
        for ino in list(inos):
            if ino not in self._counts or ino in self._told:
                continue
            task = self._telling.get(ino)
            if task is None:
                task = self._telling[ino] = asyncio.create_task(self._tell(ino))
            await asyncio.shield(task)

    async def _tell(self, ino: Ino) -> None:
        try:
            await self._inner.open(ino)
            self._told.add(ino)
        except (Fenced, NotFound):
            return  # opened anew in the next epoch, or gone already
        finally:
            del self._telling[ino]

    async def _settle(self) -> None:
        while True:
            await asyncio.sleep(SETTLE / 2)
            before = time.monotonic() - SETTLE
            for ino in [ino for ino, since in self._since.items() if since < before]:
                try:
                    await self.sustain([ino])
                except WrkfsError:
                    break
                self._since.pop(ino, None)
