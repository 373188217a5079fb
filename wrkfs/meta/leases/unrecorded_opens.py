"""Open files without a row in the database, because a lease covers them.

No other session removes the last name of such a file before it has recalled the lease. On a recall,
and before an own change does the same, this session records its open files in the database
(`sustain`). From then on, the file keeps its bytes until the last close, like any other file.

Files that stay open are recorded soon anyway, many in one call. A host that freezes after that
keeps its files even when other sessions revoke its leases.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from wrkfs.errors import Fenced, WrkfsError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator

    from wrkfs.meta.interface.leases import LeaseStore
    from wrkfs.types import Ino

SOON = 0.1
"""Seconds between two checks of the open files. A file that is open at two checks is recorded: one
that is open for less than `SOON` costs nothing, one that is open for twice as long is recorded."""
PAUSE = 1.0
"""Seconds before the next attempt after a failure."""
BATCH = 500
"""Maximum number of files in one call, which locks them all for about 20 ms."""


class UnrecordedOpens:
    """Numbers of light handles by inode. A light handle is one that the database does not know.

    Critical section: an inode is in `_recorded` only while it has light handles, or while its last
    release removes the row; the database has one row for all of them. One call at a time records an
    inode (`_recording`), and its row is removed only after that call has ended.
    """

    def __init__(self, inner: LeaseStore) -> None:
        self._inner = inner
        self._counts: dict[Ino, int] = {}
        self._since: dict[Ino, int] = {}
        """Unrecorded inodes, and the number of checks before they were opened."""
        self._recorded: set[Ino] = set()
        self._recording: dict[Ino, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._generation = 0
        self._checks = 0
        self._opened = asyncio.Event()
        self._bars = 0
        self._clock: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task that records files that stay open."""
        self._clock = asyncio.create_task(self._record_soon(), name="wrkfs opens")

    async def close(self) -> None:
        """Stop that task."""
        if self._clock is not None:
            self._clock.cancel()
            await asyncio.gather(self._clock, return_exceptions=True)

    def clear(self) -> None:
        """Drop all handles: a new epoch begins, in which no file is open."""
        self._generation += 1
        self._counts.clear()
        self._since.clear()
        self._recorded.clear()
        self._recording.clear()

    def __contains__(self, ino: Ino) -> bool:
        return ino in self._counts

    @property
    def all(self) -> list[Ino]:
        """Inodes with light handles."""
        return list(self._counts)

    @property
    def allowed(self) -> bool:
        """True if a new handle may stay unrecorded now (`barred`)."""
        return not self._bars

    @contextmanager
    def barred(self) -> Iterator[None]:
        """Record every open at once while the body runs, because the body removes names."""
        self._bars += 1
        try:
            yield
        finally:
            self._bars -= 1

    def add(self, ino: Ino) -> None:
        """Add one handle; a lease must cover the file."""
        self._counts[ino] = self._counts.get(ino, 0) + 1
        if ino not in self._recorded:
            self._since.setdefault(ino, self._checks)
            self._opened.set()

    def release_now(self, ino: Ino) -> bool:
        """Remove one handle if that needs no call of the database; return whether it did."""
        remaining = self._counts.get(ino, 0) - 1
        if remaining < 0 or (not remaining and (ino in self._recorded or ino in self._recording)):
            return False
        if remaining:
            self._counts[ino] = remaining
        else:
            del self._counts[ino]
            self._since.pop(ino, None)
        return True

    async def release(self, ino: Ino) -> bool:
        """Remove one handle. Return False if the inode has no light one.

        Raises the errors of `FileStore.release`.
        """
        if self.release_now(ino):
            return True
        if ino not in self._counts:
            return False
        del self._counts[ino]
        self._since.pop(ino, None)
        # A cancelled caller does not stop this: the row must not stay.
        await asyncio.shield(self._spawn(self._remove_row(ino, self._generation)))
        return True

    async def _remove_row(self, ino: Ino, generation: int) -> None:
        """Remove the row of a file that is no longer open."""
        recording = self._recording.get(ino)
        if recording is not None:
            await asyncio.wait({recording})
        if generation == self._generation and ino in self._recorded and ino not in self._counts:
            self._recorded.discard(ino)
            await self._inner.release(ino)

    async def sustain(self, inos: Iterable[Ino]) -> None:
        """Record the open files among these.

        After Unavailable it is unknown which of them the database has recorded.
        """
        missing = [ino for ino in inos if ino in self._counts and ino not in self._recorded]
        unsent = [ino for ino in dict.fromkeys(missing) if ino not in self._recording]
        for first in range(0, len(unsent), BATCH):
            batch = unsent[first : first + BATCH]
            task = self._spawn(self._record(batch, self._generation))
            self._recording.update(dict.fromkeys(batch, task))
        under_way = {self._recording[ino]: None for ino in missing}
        for task in under_way:
            await asyncio.shield(task)

    async def _record(self, inos: list[Ino], generation: int) -> None:
        task = asyncio.current_task()
        try:
            await self._inner.sustain(inos)
            if generation == self._generation:
                self._recorded.update(inos)
        except Fenced:
            return  # the next epoch opens the files again
        finally:
            for ino in inos:
                if self._recording.get(ino) is task:
                    del self._recording[ino]

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start work that continues if its caller is cancelled; its error is then ignored."""

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                task.exception()

        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended)
        return task

    async def _record_soon(self) -> None:
        while True:
            await self._opened.wait()
            await asyncio.sleep(SOON)
            before, self._checks = self._checks, self._checks + 1
            still_open = [ino for ino, check in self._since.items() if check < before]
            with suppress(WrkfsError):
                await self.sustain(still_open)
            for ino in self._recorded.intersection(still_open):
                self._since.pop(ino, None)
            if not self._since:
                self._opened.clear()
            elif any(ino in self._since for ino in still_open):
                await asyncio.sleep(PAUSE)
