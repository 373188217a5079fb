"""A client by HTTP that began with a handshake: what it sent, and what is to be told to it.

Nothing but the methods called `next` awaits, so each change is atomic.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.errors import BadRequest, QuotaExceeded
from boxd.mcp import wire
from boxd.mcp.watch import News
from boxd.secret import random_hex

if TYPE_CHECKING:
    from boxd.principal import Principal

MAX_OPEN = 64
"""Requests of one session that are not answered."""
MAX_TOLD = 256
"""What waits to be told before an answer."""
CANCELLED = -32800


@dataclass(frozen=True, slots=True)
class Reply:
    """A text about a request. `last`: its answer, and `good` that it is no error."""

    text: str
    last: bool
    good: bool = False


class Replies:
    """What a client is told about one request, its answer last."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Reply] = asyncio.Queue()

    def tell(self, text: str) -> None:
        """Something before the answer; dropped when too much waits."""
        if self._queue.qsize() < MAX_TOLD:
            self._queue.put_nowait(Reply(text, last=False))

    def answer(self, text: str, *, good: bool) -> None:
        """The answer."""
        self._queue.put_nowait(Reply(text, last=True, good=good))

    async def next(self) -> Reply:
        """The next one."""
        return await self._queue.get()


class HttpSession:
    """See the module."""

    def __init__(self, principal: Principal) -> None:
        self.id = random_hex(16)
        self.principal = principal
        self.news = News()
        self.serving: asyncio.Task[None]
        self.busy = 0
        """Requests that are being served."""
        self.idle: asyncio.TimerHandle | None = None
        self.reading: asyncio.Event = asyncio.Event()
        """Set when another GET takes the place of the one that is told the news."""
        self._replies: dict[str | int, Replies] = {}
        self._incoming: asyncio.Queue[object] = asyncio.Queue()

    def feed(self, message: object) -> None:
        """A message of the client, as the library has them."""
        self._incoming.put_nowait(message)

    async def next(self) -> object:
        """The next message of the client."""
        return await self._incoming.get()

    def expect(self, number: str | int) -> Replies:
        """What answers a request, until `forget`. BadRequest, QuotaExceeded."""
        if number in self._replies:
            raise BadRequest("a request with this id is open; give each another one")
        if len(self._replies) >= MAX_OPEN:
            raise QuotaExceeded(f"busy: {MAX_OPEN} requests of this session are open")
        self._replies[number] = replies = Replies()
        return replies

    def replies(self, number: str | int) -> Replies | None:
        """What answers an open request."""
        return self._replies.get(number)

    def settle(self, number: str | int) -> None:
        """A request was cancelled: its client, if it is there, has to have an answer."""
        if (replies := self._replies.get(number)) is not None:
            text = wire.error(CANCELLED, "request cancelled", number)
            replies.answer(text, good=False)

    def forget(self, number: str | int) -> None:
        """Nobody waits for an answer any more."""
        self._replies.pop(number, None)
