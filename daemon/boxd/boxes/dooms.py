"""Boxes that are to be removed at once, whatever is done with them.

Who removes a box waits for its lock, and whoever has it may wait for long: for an agent that does
not answer, an image that is fetched, a memory that is written. So a removal that is not to wait
dooms the box first: what waits is broken off, and who gets the lock next finds the box gone.

No method awaits but in the work that it surrounds, so each is atomic on the event loop.
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


class Doomed(NotFound):
    """The box is being removed."""

    def __init__(self, box: Box) -> None:
        super().__init__(f"box {box.ref} was removed")


class Dooms:
    """See the module."""

    def __init__(self) -> None:
        self._doomed: Counter[str] = Counter()
        self._work: dict[str, set[asyncio.Timeout]] = {}

    def has(self, box: Box) -> bool:
        """Whether somebody is about to remove the box."""
        return self._doomed[box.id] > 0

    @contextmanager
    def doom(self, box: Box) -> Iterator[None]:
        """Breaks off what is done with the box, and keeps others from it while this lasts."""
        self._doomed[box.id] += 1
        now = asyncio.get_running_loop().time()
        for work in self._work.pop(box.id, ()):
            work.reschedule(now)
        try:
            yield
        finally:
            self._doomed[box.id] -= 1
            if not self._doomed[box.id]:
                del self._doomed[box.id]

    @asynccontextmanager
    async def breakable(self, box: Box) -> AsyncIterator[None]:
        """Breaks off what stands in it, by a cancellation, as soon as the box is doomed; Doomed.

        What stands in it takes back what it did, as when it is cancelled. Not to be nested.
        """
        if self.has(box):
            raise Doomed(box)
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
            raise Doomed(box) from None

    def _forget(self, box_id: str, limit: asyncio.Timeout) -> None:
        work = self._work.get(box_id)
        if work is not None:
            work.discard(limit)
            if not work:
                del self._work[box_id]
