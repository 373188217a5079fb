"""The replies to one request of an HTTP client: progress messages, then the answer.

A request outlives its connections. Each reply has a number. A new connection continues after the
last reply that the client received.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from boxd.mcp.messages import wire

MAX_REPLIES = 64
"""Maximum number of replies of one request that are stored. Beyond this, the service drops the
oldest progress message."""
ANSWER_DROPPED = -32001
"""JSON-RPC code of the error that replaces an answer that is too large to store."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One message about a request. `last`: it is the answer. `success`: it is not an error."""

    number: int
    text: str
    last: bool
    success: bool = False


class Replies:
    """The replies to one request.

    `request` is the client's id of the request, `stream` is our number for it.
    """

    def __init__(self, request: str | int, stream: int) -> None:
        self.request = request
        self.stream = stream
        self.readers = 0
        """Connections that deliver the replies: two while one replaces another."""
        self.replaced = asyncio.Event()
        """Set when another connection replaces the one that waits for this event."""
        self.timer: asyncio.TimerHandle | None = None
        """Cancels the request, or removes its answer, unless a connection resumes it."""
        self.answered = False
        self._count = 0
        self._log: deque[Reply] = deque(maxlen=MAX_REPLIES)
        self._added = asyncio.Event()

    @property
    def size(self) -> int:
        """The bytes of all stored messages, which are ASCII."""
        return sum(len(reply.text) for reply in self._log)

    def add(self, text: str) -> None:
        """Add a message before the answer. After the answer this does nothing."""
        if not self.answered:
            self._append(text, last=False)

    def answer(self, text: str, *, success: bool) -> None:
        """Add the answer. Only the first answer counts."""
        if not self.answered:
            self.answered = True
            self._append(text, last=True, success=success)

    def drop_answer(self) -> None:
        """Replace all stored messages with a short error that reports the loss to the client."""
        number = self._count
        size = self.size
        self._log.clear()
        text = (
            f"the answer of {size} bytes was dropped while no connection read it; "
            "request less data, or stay connected"
        )
        error = wire.error_response(ANSWER_DROPPED, text, self.request)
        self._log.append(Reply(number, error, last=True))

    def is_finished(self, after: int) -> bool:
        """Return whether no reply will follow the one with the number `after`."""
        return self.answered and after >= self._count

    async def next(self, after: int) -> Reply:
        """Wait for and return the first reply after the one with the number `after`."""
        while True:
            for reply in self._log:
                if reply.number > after:
                    return reply
            self._added.clear()
            await self._added.wait()

    def _append(self, text: str, *, last: bool, success: bool = False) -> None:
        self._count += 1
        self._log.append(Reply(self._count, text, last, success))
        self._added.set()
