"""What waits to be sent to one client, bounded: who does not read is dropped, and nobody else
waits for it.

Critical sections: none; nothing is awaited between a look at the state and its change.
"""

from __future__ import annotations

import asyncio
from collections import deque

MESSAGES = 256
BYTES = 4 * 1024 * 1024
PATIENCE_S = 20.0
"""How long an answer waits for room, while other work goes on, before the client is dropped."""


class Slow(Exception):
    """The client does not read what it is sent."""

    def __init__(self) -> None:
        super().__init__("you do not read what you are sent; connect again")


class Outbox:
    """One task takes; any may put. `full` is set when the client is to be dropped."""

    def __init__(
        self, messages: int = MESSAGES, size: int = BYTES, patience: float | None = None
    ) -> None:
        self.full = asyncio.Event()
        self._limits = (messages, size)
        self._patience = PATIENCE_S if patience is None else patience
        self._waiting: deque[str] = deque()
        self._size = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._idle = asyncio.Event()

    def push(self, text: str) -> None:
        """What may not wait. Without room the client is dropped."""
        if self._fits(text):
            self._add(text)
        else:
            self.full.set()

    async def put(self, text: str) -> None:
        """An answer: waits for room. When none comes, the client is dropped, and this with it."""
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
        """The next one, in order. Who asks for it has sent the one before."""
        if not self._waiting:
            self._idle.set()
        while not self._waiting:
            self._news.clear()
            await self._news.wait()
        text = self._waiting.popleft()
        self._size -= len(text)
        self._room.set()
        return text

    async def drained(self) -> None:
        """Waits until all that was put is sent."""
        await self._idle.wait()

    def _fits(self, text: str) -> bool:
        """One message always does: an answer may be larger than all that may wait."""
        messages, size = self._limits
        return not self._waiting or (
            len(self._waiting) < messages and self._size + len(text) <= size
        )

    def _add(self, text: str) -> None:
        self._idle.clear()
        self._waiting.append(text)
        self._size += len(text)
        self._news.set()
