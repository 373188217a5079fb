"""Open files that the database was not told of, because a lease covers them.

Nobody else takes the last name of such a file away without asking for the lease first; then, and
before an own change does, the database is told (`sustain`), and the file keeps its bytes until the
last close like any other. What stays open is told soon, many files in one call: a host that stands
still from then on keeps its files when others take its leases away.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from wrkfs.errors import Fenced, WrkfsError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator

    from wrkfs.meta.leases import LeaseStore
    from wrkfs.types import Ino

SOON = 0.1
"""Seconds between two looks at what is open. What was open at two of them is told: a file that is
open for less costs nothing, one that is open for twice as long is told."""
PAUSE = 1.0
"""Seconds until it is tried again when that failed."""
BATCH = 500
"""Files told in one call, which locks them all: about 20 ms."""


class LightOpens:
    """Counts of light handles by inode.

    Critical section: an inode is in `_told` only while it has light handles, or while its last
    release is taking the row back; the database holds one row for all of them. An inode is told
    by one call at a time (`_telling`), and taken back only when that has ended.
    """

    def __init__(self, inner: LeaseStore) -> None:
        self._inner = inner
        self._counts: dict[Ino, int] = {}
        self._since: dict[Ino, int] = {}
        """Those that are not told yet, and how many looks there had been when they were opened."""
        self._told: set[Ino] = set()
        self._telling: dict[Ino, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._generation = 0
        self._looks = 0
        self._opened = asyncio.Event()
        self._barred = 0
        self._clock: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to tell of files that stay open."""
        self._clock = asyncio.create_task(self._tell_soon(), name="wrkfs opens")

    async def close(self) -> None:
        """Ends that."""
        if self._clock is not None:
            self._clock.cancel()
            await asyncio.gather(self._clock, return_exceptions=True)

    def clear(self) -> None:
        """Nothing is open any more: a new epoch begins."""
        self._generation += 1
        self._counts.clear()
        self._since.clear()
        self._told.clear()
        self._telling.clear()

    def __contains__(self, ino: Ino) -> bool:
        return ino in self._counts

    @property
    def all(self) -> list[Ino]:
        """Inodes with light handles."""
        return list(self._counts)

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
        if ino not in self._told:
            self._since.setdefault(ino, self._looks)
            self._opened.set()

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
        if ino in self._told or ino in self._telling:
            # Whoever waits may go away: the row does not stay.
            await asyncio.shield(self._spawn(self._take_back(ino, self._generation)))
        return True

    async def _take_back(self, ino: Ino, generation: int) -> None:
        """Removes the row of a file that is not open any more."""
        telling = self._telling.get(ino)
        if telling is not None:
            await asyncio.wait({telling})
        if generation == self._generation and ino in self._told and ino not in self._counts:
            self._told.discard(ino)
            await self._inner.release(ino)

    async def sustain(self, inos: Iterable[Ino]) -> None:
        """Tells the database of those of these files that are open. Unavailable: not known."""
        wanted = [ino for ino in inos if ino in self._counts and ino not in self._told]
        fresh = [ino for ino in dict.fromkeys(wanted) if ino not in self._telling]
        for first in range(0, len(fresh), BATCH):
            some = fresh[first : first + BATCH]
            task = self._spawn(self._tell(some, self._generation))
            self._telling.update(dict.fromkeys(some, task))
        under_way = {self._telling[ino]: None for ino in wanted}
        for task in under_way:
            await asyncio.shield(task)

    async def _tell(self, inos: list[Ino], generation: int) -> None:
        task = asyncio.current_task()
        try:
            await self._inner.sustain(inos)
            if generation == self._generation:
                self._told.update(inos)
        except Fenced:
            return  # opened anew in the next epoch
        finally:
            for ino in inos:
                if self._telling.get(ino) is task:
                    del self._telling[ino]

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Work that goes on when who waits for it goes away; nobody asks then how it went."""

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                task.exception()

        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended)
        return task

    async def _tell_soon(self) -> None:
        while True:
            await self._opened.wait()
            await asyncio.sleep(SOON)
            before, self._looks = self._looks, self._looks + 1
            stayed = [ino for ino, look in self._since.items() if look < before]
            with suppress(WrkfsError):
                await self.sustain(stayed)
            for ino in self._told.intersection(stayed):
                self._since.pop(ino, None)
            if not self._since:
                self._opened.clear()
            elif any(ino in self._since for ino in stayed):
                await asyncio.sleep(PAUSE)
