"""How many requests share the line to a store: fewer when it is too slow for all of them.

Requests that share a slow line all take longer, and when each is given up after a fixed time none
ever ends. So after a request that was given up as late one alone goes on, with more time, and each
success lets more of them in again: fast up to half of what was too much, slowly above (as TCP).
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from wrkfs.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MOST = 64
"""Requests under way at once; those who ask have bounds of their own, which are lower."""


class Flow:
    """The requests of one store.

    Critical section: none across an await; `_limit`, `_busy` and `_waiters` change together.
    """

    def __init__(self, patience: float) -> None:
        """`patience`: seconds without any success after which waiting is over."""
        self._patience = patience
        self._limit = float(MOST)
        self._threshold = float(MOST)
        self._busy = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._narrowed_at = 0.0
        self._moved_at = 0.0

    @property
    def slow(self) -> bool:
        """Whether the line was too slow for many requests not long ago."""
        return self._limit < MOST

    def left(self, began: float) -> float:
        """Seconds left for who began at `began`: the patience, from the newest success on."""
        now = asyncio.get_running_loop().time()
        return max(began, self._moved_at) + self._patience - now

    @asynccontextmanager
    async def turn(self, began: float, what: str) -> AsyncIterator[None]:
        """The body is a request. Unavailable when nothing succeeds while it waits for its turn."""
        while self._busy >= max(1, int(self._limit)):
            if (left := self.left(began)) <= 0:
                raise Unavailable(f"{what}: no success within {self._patience:g} s")
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await asyncio.wait({waiter}, timeout=left)
            except BaseException:
                if waiter.done():
                    self._wake()
                raise
            finally:
                waiter.cancel()
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            self._wake()

    def moved(self) -> None:
        """A request succeeded."""
        self._moved_at = asyncio.get_running_loop().time()
        if self.slow:
            step = 1.0 if self._limit < self._threshold else 1.0 / self._limit
            self._limit = min(MOST, self._limit + step)
            self._wake()

    def late(self, since: float) -> None:
        """A request that was sent at `since` has taken too long."""
        # Others that were sent as early are late for the same reason.
        if since >= self._narrowed_at:
            self._narrowed_at = asyncio.get_running_loop().time()
            self._threshold = max(1.0, min(self._limit, self._busy) / 2)
            self._limit = 1.0

    def _wake(self) -> None:
        """Lets as many look again as there is room."""
        room = max(1, int(self._limit)) - self._busy
        while room > 0 and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                room -= 1
