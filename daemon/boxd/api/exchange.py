"""Protocol adapter only. One request and what became of it, from its first byte to its log line."""

from __future__ import annotations

import asyncio
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

from boxd.api.headers import has_body

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from starlette.types import Message, Receive, Scope, Send

    from boxd.api.errors import Answer
    from boxd.api.places import Place
    from boxd.principal import Principal

CLOSE = (b"connection", b"close")
COMMON_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
)
CLOSED = "boxd.closed"
"""Key of the connection's end, an Event, in the state of a scope."""
LIMIT = "boxd.limit"
"""Key of the function that bounds messages of a WebSocket, in bytes, in the state of a scope."""
ABORT = "boxd.abort"
"""Key of what resets the connection, in the state of a scope."""
PLACE = "boxd.place"
"""Key of the connection's Place in the state of a scope."""
RECORD = "boxd.record"
"""Key of the Record in a scope."""


def date_line() -> tuple[bytes, bytes]:
    """The `Date` of now."""
    return (b"date", formatdate(usegmt=True).encode())


def raw_answer(answer: Answer) -> bytes:
    """A whole response for a connection on which nothing follows."""
    lines = [*answer.lines(), *COMMON_HEADERS, date_line(), CLOSE]
    status = HTTPStatus(answer.status)
    head = [f"HTTP/1.1 {status} {status.phrase}".encode(), *(b"%b: %b" % line for line in lines)]
    return b"\r\n".join([*head, b"", answer.body])


class Record:
    """What the access log says of a request; `route` and `principal` are filled in on the way.

    `closed` is set when the connection is gone, also while nobody reads what it sends.
    """

    def __init__(self, scope: Scope) -> None:
        self.closed: asyncio.Event = scope.get("state", {}).get(CLOSED) or asyncio.Event()
        self._place: Place | None = scope.get("state", {}).get(PLACE)
        self.route = "-"
        self.principal = "-"
        self.status = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.finished = False

    def enter(self, principal: Principal) -> None:
        """It is known who asks. QuotaExceeded when the owner is served too much at once."""
        self.principal = principal.key_id or "-"
        if self._place is not None:
            self._place.begin(principal.owner)

    def leave(self) -> None:
        """The request is over."""
        if self._place is not None:
            self._place.end()

    async def while_connected(self, serving: Coroutine[Any, Any, None]) -> None:
        """Runs `serving` to its end, or until the client has gone, whichever is first."""
        work = asyncio.create_task(serving, name="serving")
        gone = asyncio.create_task(self.closed.wait(), name="client gone")
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            await cancel(work, gone)


def record_of(scope: Scope) -> Record:
    """The record of a request or a WebSocket."""
    return cast("Record", scope[RECORD])


class Exchange(Record):
    """One HTTP request.

    `answered` is a failure that an inner layer has answered and raised again.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope)
        self.answered: Exception | None = None
        self.passed_on = False
        """Whether the answer is one of a program in a box, whose headers are its own."""
        self.more_headers: list[tuple[bytes, bytes]] = []
        """Of the answer, whatever it becomes."""
        self.body_unread = has_body(scope["headers"])
        self._to_the_end = scope["http_version"] == "1.0"
        self._abort: Callable[[], None] | None = scope.get("state", {}).get(ABORT)
        self._receive = receive
        self._send = send

    async def receive(self) -> Message:
        """The next part of the body, or the disconnect."""
        message = await self._receive()
        if message["type"] == "http.request":
            self.bytes_in += len(message.get("body", b""))
            if not message.get("more_body", False):
                self.body_unread = False
        return message

    async def send(self, message: Message) -> None:
        """Passes a message on; the first one gets the headers that every answer has."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": self._complete(message.get("headers", ()))}
        elif message["type"] == "http.response.body":
            self.bytes_out += len(message.get("body", b""))
            self.finished = not message.get("more_body", False)
        await self._send(message)

    def cut(self) -> None:
        """The answer has begun and will not be completed: the server closes the connection, which
        an HTTP/1.0 client would take for the end of the answer."""
        if self._to_the_end and self._abort is not None:
            self._abort()

    async def answer(self, answer: Answer) -> None:
        """Sends a whole response."""
        await self.send(
            {"type": "http.response.start", "status": answer.status, "headers": answer.lines()}
        )
        await self.send({"type": "http.response.body", "body": answer.body})

    def _complete(self, lines: object) -> list[tuple[bytes, bytes]]:
        complete = list(cast("list[tuple[bytes, bytes]]", lines))
        names = {name for name, _ in complete}
        if not self.passed_on:
            complete += [line for line in COMMON_HEADERS if line[0] not in names]
            if b"date" not in names:
                complete.append(date_line())
        complete += self.more_headers
        if self.body_unread and CLOSE not in complete:
            # What is left of the body would have to be read before the next request.
            complete.append(CLOSE)
        return complete


def exchange_of(scope: Scope) -> Exchange:
    """The exchange that an HTTP request belongs to."""
    return cast("Exchange", scope[RECORD])


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Ends tasks and waits for it; how they end is nobody's concern."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
