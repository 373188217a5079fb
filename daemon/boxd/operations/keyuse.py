"""When keys, shares and owners were last used or seen: written behind the requests, now and then.

No method but `close` awaits; what is written is a task of its own.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from boxd.errors import BoxdError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from boxd.clock import Clock

TOUCH_INTERVAL = timedelta(minutes=1)
"""The last use of one is written at most this often."""

_log = logging.getLogger(__name__)


class LastUses:
    """Of one kind of key, by id. A use that cannot be written is dropped; the next tries again."""

    def __init__(self, write: Callable[[str, datetime], Awaitable[None]], clock: Clock) -> None:
        self._write_to_store = write
        self._clock = clock
        self._touched: dict[str, float] = {}
        """When each was last touched, oldest first; what is older than TOUCH_INTERVAL may go."""
        self._background: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Waits for what is being written (bounded by the store's own deadline)."""
        await asyncio.gather(*self._background)

    def touch(self, key_id: str) -> None:
        """The key is being used."""
        now = self._clock.monotonic()
        self._forget_before(now - TOUCH_INTERVAL.total_seconds())
        if key_id in self._touched:
            return
        self._touched[key_id] = now
        task = asyncio.create_task(self._write(key_id))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

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
            _log.debug("last use of a key not written; its next use tries again", exc_info=True)
