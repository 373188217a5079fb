"""Urgent removals: boxes that are being removed while other work holds their lock.

A removal needs the box's lock, and the holder of the lock may take long. It may wait for an agent
that does not answer, for an image, or for the write of a memory image. So the daemon announces an
urgent removal first. The announcement cancels the work in progress, and the next holder of the lock
sees that the box is being removed.

Critical section: none. The bookkeeping does not await, so each method is atomic on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from boxd.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from boxd.model.box import Box


class BeingRemoved(NotFound):
    """A box is being removed."""

    def __init__(self, box: Box) -> None:
        super().__init__(f"box {box.ref} was removed")


class PendingRemovals:
    """The boxes whose removal is announced, and the work that an announcement cancels."""

    def __init__(self) -> None:
        self._pending: Counter[str] = Counter()
        self._work: dict[str, set[asyncio.Timeout]] = {}

    @property
    def total(self) -> int:
        """Number of announced removals."""
        return self._pending.total()

    def has(self, box: Box) -> bool:
        """Return whether the removal of the box is announced."""
        return self._pending[box.id] > 0

    @contextmanager
    def announce(self, box: Box) -> Iterator[None]:
        """Cancel all abortable work on the box, and reject new work while the context lasts."""
        self._pending[box.id] += 1
        now = asyncio.get_running_loop().time()
        for work in self._work.pop(box.id, ()):
            work.reschedule(now)
        try:
            yield
        finally:
            self._pending[box.id] -= 1
            if not self._pending[box.id]:
                del self._pending[box.id]

    @asynccontextmanager
    async def abortable(self, box: Box) -> AsyncIterator[None]:
        """Run work on the box that an announced removal cancels.

        Raises BeingRemoved when that happens. The work undoes what it did, as after any
        cancellation. Contexts of one box must not be nested.
        """
        if self.has(box):
            raise BeingRemoved(box)
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._work.setdefault(box.id, set()).add(limit)
                try:
                    yield
                finally:
                    self._forget(box.id, limit)
        except TimeoutError:
            if not limit.expired():
                raise
            raise BeingRemoved(box) from None

    def _forget(self, box_id: str, limit: asyncio.Timeout) -> None:
        work = self._work.get(box_id)
        if work is not None:
            work.discard(limit)
            if not work:
                del self._work[box_id]
