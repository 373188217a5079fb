"""What a client by HTTP receives about one request: progress, and the answer last.

Connections come and go while the request goes on. Each reply has a number, so that a connection
continues behind the last reply that the client has seen.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from boxd.mcp.messages import wire

MAX_TOLD = 64
"""Replies of one request that are kept; beyond that the oldest progress is dropped."""
GIVEN_UP = -32001
"""Code of the error in the place of an answer that was too large to be kept."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A text about a request. `last`: its answer, and `good` that it is no error."""

    number: int
    text: str
    last: bool
    good: bool = False


class Replies:
    """See the module. `request` is the id that the client gave it, `stream` ours."""

    def __init__(self, request: str | int, stream: int) -> None:
        self.request = request
        self.stream = stream
        self.readers = 0
        """Connections that deliver it: two while one replaces another."""
        self.replaced = asyncio.Event()
        """Set when another connection takes over from the one that holds this event."""
        self.timer: asyncio.TimerHandle | None = None
        """Ends the request, or forgets its answer, unless a connection comes back."""
        self.answered = False
        self._count = 0
        self._log: deque[Reply] = deque(maxlen=MAX_TOLD)
        self._news = asyncio.Event()

    @property
    def size(self) -> int:
        """Bytes of all texts; they are ASCII."""
        return sum(len(reply.text) for reply in self._log)

    def tell(self, text: str) -> None:
        """Adds something before the answer."""
        if not self.answered:
            self._add(text, last=False)

    def answer(self, text: str, *, good: bool) -> None:
        """Adds the answer. Only the first one counts."""
        if not self.answered:
            self.answered = True
            self._add(text, last=True, good=good)

    def give_up(self) -> None:
        """Replaces an answer that was not delivered by an error, which is small."""
        number = self._count
        size = self.size
        self._log.clear()
        text = (
            f"the answer of {size} bytes was dropped while no connection read it; "
            "ask for less, or stay connected"
        )
        error = wire.error(GIVEN_UP, text, self.request)
        self._log.append(Reply(number, error, last=True))

    def is_over(self, after: int) -> bool:
        """Whether nothing comes behind the reply of this number."""
        return self.answered and after >= self._count

    async def next(self, after: int) -> Reply:
        """The first reply behind the one of this number."""
        while True:
            for reply in self._log:
                if reply.number > after:
                    return reply
            self._news.clear()
            await self._news.wait()

    def _add(self, text: str, *, last: bool, good: bool = False) -> None:
        self._count += 1
        self._log.append(Reply(self._count, text, last, good))
        self._news.set()
