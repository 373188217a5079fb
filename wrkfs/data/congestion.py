"""Congestion window for a store: fewer concurrent requests on a slow line.

Requests that share a slow line all take longer. If each one ends after a fixed timeout, none
succeeds. So after a timeout the window shrinks to one request, which gets more time. Each success
widens the window: fast up to half of the size at the timeout, slowly above it, as in TCP.
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
"""Maximum size of the window. Callers have lower limits of their own."""


class CongestionWindow:
    """Limits the concurrent requests of one store.

    Critical section: none across an await; `_size`, `_busy` and `_waiters` change together.
    """

    def __init__(self, patience: float) -> None:
        """`patience`: seconds without any success after which a waiting request fails."""
        self._patience = patience
        self._size = float(MOST)
        self._threshold = float(MOST)
        self._busy = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._shrink_time = 0.0
        self._success_time = 0.0

    @property
    def slow(self) -> bool:
        """True if the line was recently too slow for many requests."""
        return self._size < MOST

    def time_left(self, start: float) -> float:
        """Return the remaining seconds of a call that began at `start`.

        The patience counts from `start` or from the latest success of any request.
        """
        now = asyncio.get_running_loop().time()
        return max(start, self._success_time) + self._patience - now

    @asynccontextmanager
    async def slot(self, start: float, action: str) -> AsyncIterator[None]:
        """Return a context for one request. Raises Unavailable if none succeeds while it waits."""
        while self._busy >= max(1, int(self._size)):
            if (time_left := self.time_left(start)) <= 0:
                raise Unavailable(f"{action}: no success within {self._patience:g} s")
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await asyncio.wait({waiter}, timeout=time_left)
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

    def note_success(self) -> None:
        """Record that a request succeeded."""
        self._success_time = asyncio.get_running_loop().time()
        if self.slow:
            step = 1.0 if self._size < self._threshold else 1.0 / self._size
            self._size = min(MOST, self._size + step)
            self._wake()

    def note_timeout(self, sent: float) -> None:
        """Record that a request which was sent at `sent` timed out."""
        # Other requests that were sent before the last shrinking time out for the same reason.
        if sent >= self._shrink_time:
            self._shrink_time = asyncio.get_running_loop().time()
            self._threshold = max(1.0, min(self._size, self._busy) / 2)
            self._size = 1.0

    def _wake(self) -> None:
        """Wake as many waiting requests as the window has room for."""
        room = max(1, int(self._size)) - self._busy
        while room > 0 and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                room -= 1
