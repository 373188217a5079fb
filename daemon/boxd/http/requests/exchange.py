"""Protocol adapter only. One request and its response, from the handshake to the access log."""

from __future__ import annotations

import asyncio
import secrets
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from boxd.http.requests.body import ClientGone
from boxd.http.requests.headers import has_body

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from starlette.types import Message, Receive, Scope, Send

    from boxd.http.requests.errors import Answer
    from boxd.principal import Principal

T = TypeVar("T")
REQUEST_ID = b"x-request-id"
CLOSE = (b"connection", b"close")
COMMON_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
)
# Keys in the state of a scope; the server sets them.
CLOSED = "boxd.closed"
"""An Event that is set when the connection has ended."""
LIMIT = "boxd.limit"
"""A function that limits the messages of a WebSocket, in bytes."""
ABORT = "boxd.abort"
"""A function that resets the connection."""
SLOT = "boxd.slot"
"""The ConnectionSlot of the connection."""
# Key in the scope itself; the guard sets it.
RECORD = "boxd.record"
"""The Record of the request."""


def date_line() -> tuple[bytes, bytes]:
    """Return a `Date` header line for the current time."""
    return (b"date", formatdate(usegmt=True).encode())


def raw_answer(answer: Answer) -> bytes:
    """Return the bytes of a whole response, after which the connection closes."""
    lines = [*answer.lines(), *COMMON_HEADERS, date_line(), CLOSE]
    status = HTTPStatus(answer.status)
    head = [f"HTTP/1.1 {status} {status.phrase}".encode(), *(b"%b: %b" % line for line in lines)]
    return b"\r\n".join([*head, b"", answer.body])


class ConnectionSlot(Protocol):
    """Counts the request in progress on a connection for its owner."""

    def begin(self, owner: str) -> tuple[int, int]:
        """Count a request of `owner`; return how many it may have in progress, and how many more.

        Raises QuotaExceeded if the owner has too many in progress.
        """
        ...

    def end(self) -> None:
        """Stop counting. No error if no request was counted."""
        ...


class Record:
    """The fields of the access log for one request.

    Routing sets `route`, and authentication sets `principal`. `closed` is set when the connection
    has ended, even while no task reads from it. It is also set when the server has refused the rest
    of the request.
    """

    def __init__(self, scope: Scope) -> None:
        self.closed: asyncio.Event = scope.get("state", {}).get(CLOSED) or asyncio.Event()
        self._slot: ConnectionSlot | None = scope.get("state", {}).get(SLOT)
        self.id = secrets.token_hex(8)
        """Names the request in its response and in the access log."""
        self.room: tuple[int, int] | None = None
        """How many requests the owner may have in progress, and how many more; None: not known."""
        self.route = "-"
        self.principal = "-"
        self.status = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.finished = False

    def enter(self, principal: Principal) -> None:
        """Count the request for its owner. Raises QuotaExceeded if too many are in progress."""
        self.principal = principal.key_id or "-"
        if self._slot is not None:
            self.room = self._slot.begin(principal.owner)

    def leave(self) -> None:
        """Stop counting the request: it has ended."""
        if self._slot is not None:
            self._slot.end()

    async def connected(self, serving: Coroutine[Any, Any, T]) -> T:
        """Return the result of `serving`, which ends when the client disconnects.

        Raises ClientGone if the client disconnected first.
        """
        results: list[T] = []

        async def collect() -> None:
            results.append(await serving)

        await self.while_connected(collect())
        if not results:
            raise ClientGone
        return results[0]

    async def while_connected(self, serving: Coroutine[Any, Any, None]) -> None:
        """Run `serving` until it ends or the client disconnects, whichever is first."""
        work = asyncio.create_task(serving, name="serving")
        disconnect = asyncio.create_task(self.closed.wait(), name="client gone")
        try:
            await asyncio.wait({work, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            await cancel(work, disconnect)


def record_of(scope: Scope) -> Record:
    """Return the record of a request or a WebSocket."""
    return cast("Record", scope[RECORD])


class Exchange(Record):
    """One HTTP request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope)
        self.passed_on = False
        """Whether the response comes from a program in a box, and so keeps its own headers."""
        self.more_headers: list[tuple[bytes, bytes]] = []
        """Further header lines of the response, whether it is a success or an error."""
        self.body_unread = has_body(scope["headers"])
        self._to_the_end = scope["http_version"] == "1.0"
        self._abort: Callable[[], None] | None = scope.get("state", {}).get(ABORT)
        self._receive = receive
        self._send = send

    async def receive(self) -> Message:
        """Return the next part of the body, or the disconnect message."""
        message = await self._receive()
        if message["type"] == "http.request":
            self.bytes_in += len(message.get("body", b""))
            if not message.get("more_body", False):
                self.body_unread = False
        return message

    async def send(self, message: Message) -> None:
        """Send a message; the first one gets the headers that every response has."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": self._complete(message.get("headers", ()))}
        elif message["type"] == "http.response.body":
            self.bytes_out += len(message.get("body", b""))
            self.finished = not message.get("more_body", False)
        await self._send(message)

    def cut(self) -> None:
        """Reset the connection of an HTTP/1.0 client whose response stays incomplete.

        The server closes such a connection, and an HTTP/1.0 client would take the close for the end
        of the response.
        """
        if self._to_the_end and self._abort is not None:
            self._abort()

    async def answer(self, answer: Answer) -> None:
        """Send a whole response."""
        await self.send(
            {"type": "http.response.start", "status": answer.status, "headers": answer.lines()}
        )
        await self.send({"type": "http.response.body", "body": answer.body})

    def _complete(self, lines: object) -> list[tuple[bytes, bytes]]:
        complete = list(cast("list[tuple[bytes, bytes]]", lines))
        names = {name for name, _ in complete}
        if not self.passed_on:
            complete += [line for line in COMMON_HEADERS if line[0] not in names]
            complete.append((REQUEST_ID, self.id.encode()))
            complete += _rate_limit(self.room)
            if b"date" not in names:
                complete.append(date_line())
        complete += self.more_headers
        if self.body_unread and CLOSE not in complete:
            # Before the next request, the server would have to read the rest of this body.
            complete.append(CLOSE)
        return complete


def _rate_limit(room: tuple[int, int] | None) -> list[tuple[bytes, bytes]]:
    """Return the headers that describe the limit on requests in progress.

    A request that ends makes room at once, so the reset is always a second away.
    """
    if room is None:
        return []
    limit, remaining = room
    return [
        (b"ratelimit-limit", b"%d" % limit),
        (b"ratelimit-remaining", b"%d" % remaining),
        (b"ratelimit-reset", b"1"),
    ]


def exchange_of(scope: Scope) -> Exchange:
    """Return the exchange of an HTTP request."""
    return cast("Exchange", scope[RECORD])


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended. Their exceptions are ignored."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
