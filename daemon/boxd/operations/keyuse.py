"""When API keys were last used: written behind the requests, at most once in TOUCH_INTERVAL.

No method but `close` awaits; what is written is a task of its own.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from boxd.errors import BoxdError

if TYPE_CHECKING:
    from boxd.clock import Clock
    from boxd.model.key import ApiKey
    from boxd.store.interface import ControlStore

TOUCH_INTERVAL = timedelta(minutes=1)
"""`last_used` of a key is written at most this often."""

_log = logging.getLogger(__name__)


class KeyUses:
    """See the module. A use that cannot be written is dropped; the next one tries again."""

    def __init__(self, store: ControlStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._touched: dict[str, float] = {}
        self._background: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Waits for what is being written (bounded by the store's own deadline)."""
        await asyncio.gather(*self._background)

    def forget(self, key_id: str) -> None:
        """The key is gone. No error if it was never used."""
        self._touched.pop(key_id, None)

    def touch(self, key: ApiKey) -> None:
        """The key is being used."""
        now = self._clock.monotonic()
        last = self._touched.get(key.id)
        if last is not None and now - last < TOUCH_INTERVAL.total_seconds():
            return
        self._touched[key.id] = now
        task = asyncio.create_task(self._write(key.id))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _write(self, key_id: str) -> None:
        try:
            await self._store.touch_key(key_id, self._clock.now())
        except BoxdError:
            self._touched.pop(key_id, None)
            _log.debug("last use of a key not written; its next use tries again", exc_info=True)
