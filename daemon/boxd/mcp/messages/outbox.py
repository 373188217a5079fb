"""A bounded queue of messages to one client.

The service disconnects a client that does not read. No other client waits for it.

Critical sections: none. No method awaits between a check of the state and the change.
"""

from __future__ import annotations

import asyncio
from collections import deque

MAX_MESSAGES = 256
MAX_BYTES = 4 * 1024 * 1024
PATIENCE_S = 20.0
"""Seconds that an answer waits for space before the service disconnects the client. Other work
continues."""


class SlowClient(Exception):
    """The client does not read its messages."""

    def __init__(self) -> None:
        super().__init__("the client reads its messages too slowly; connect again")


class Outbox:
    """One task takes messages; any task may add them.

    `full` is set when the client must be disconnected.
    """

    def __init__(
        self,
        max_messages: int = MAX_MESSAGES,
        max_bytes: int = MAX_BYTES,
        patience: float | None = None,
    ) -> None:
        """`patience`: seconds that `put` waits for room; None: PATIENCE_S."""
        self.full = asyncio.Event()
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._patience = PATIENCE_S if patience is None else patience
        self._queue: deque[str] = deque()
        self._size = 0
        self._added = asyncio.Event()
        self._room = asyncio.Event()
        self._idle = asyncio.Event()

    def push(self, text: str) -> None:
        """Add a message without waiting. If there is no room, set `full`."""
        if self._fits(text):
            self._add(text)
        else:
            self.full.set()

    async def put(self, text: str) -> None:
        """Add an answer when there is room.

        If there is no room within the patience, drop the answer and set `full`.
        """
        try:
            async with asyncio.timeout(self._patience):
                while not (self.full.is_set() or self._fits(text)):
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            self.full.set()
        if not self.full.is_set():
            self._add(text)

    async def take(self) -> str:
        """Return the next message, in order. A call confirms that the previous one was sent."""
        if not self._queue:
            self._idle.set()
        while not self._queue:
            self._added.clear()
            await self._added.wait()
        text = self._queue.popleft()
        self._size -= len(text)
        self._room.set()
        return text

    async def drained(self) -> None:
        """Wait until all messages were sent."""
        await self._idle.wait()

    def _fits(self, text: str) -> bool:
        # An empty queue takes any message: an answer may be larger than the limit.
        return not self._queue or (
            len(self._queue) < self._max_messages and self._size + len(text) <= self._max_bytes
        )

    def _add(self, text: str) -> None:
        self._idle.clear()
        self._queue.append(text)
        self._size += len(text)
        self._added.set()
