"""Times of the last use of keys, shares and owners, written to the store in the background.

No method except `close` awaits; each write runs in a task of its own.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from boxd.errors import BoxdError
from boxd.tasks import BackgroundTasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from boxd.clock import Clock

TOUCH_INTERVAL = timedelta(minutes=1)
"""Minimum time between two writes for the same key."""

_log = logging.getLogger(__name__)


class LastUses:
    """Last uses of one kind of key, by id. A failed write is dropped; the next use tries again."""

    def __init__(self, write: Callable[[str, datetime], Awaitable[None]], clock: Clock) -> None:
        self._write_to_store = write
        self._clock = clock
        self._touched: dict[str, float] = {}
        """The monotonic time of each last write, oldest first, for TOUCH_INTERVAL."""
        self._background = BackgroundTasks()

    async def close(self) -> None:
        """Wait for pending writes; the store's own deadline bounds the wait."""
        await self._background.join()

    def touch(self, key_id: str) -> None:
        """Record a use of the key now, unless one was recorded within TOUCH_INTERVAL."""
        now = self._clock.monotonic()
        self._forget_before(now - TOUCH_INTERVAL.total_seconds())
        if key_id in self._touched:
            return
        self._touched[key_id] = now
        self._background.start(self._write(key_id), name="last use of a key")

    def _forget_before(self, moment: float) -> None:
        while self._touched:
            oldest = next(iter(self._touched))
            if self._touched[oldest] > moment:
                return
            del self._touched[oldest]

    async def _write(self, key_id: str) -> None:
        try:
            await self._write_to_store(key_id, self._clock.now())
        except BoxdError:
            self._touched.pop(key_id, None)
            _log.debug(
                "the last use of a key was not written; its next use tries again", exc_info=True
            )
