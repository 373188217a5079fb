"""Protocol adapter only. The outermost layer of the HTTP API.

It refuses malformed framing before anything looks at the request, turns every failure into an
answer, adds the headers that all answers carry, and writes the access log (never a query string).
"""

from __future__ import annotations

import asyncio
import logging
import time
from email.utils import formatdate
from typing import TYPE_CHECKING, cast

from boxd.api.errors import (
    Answer,
    Refusal,
    answer_for,
    error_answer,
    internal_error,
    method_not_allowed,
)
from boxd.api.headers import framing_problem, has_body
from boxd.errors import BoxdError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

CLOSE = (b"connection", b"close")
COMMON_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
)
SERVED_METHODS = "GET, HEAD, POST, PUT, DELETE"
CLOSED = "boxd.closed"
"""Key of the connection's end, an Event, in the state of a scope."""
_EXCHANGE = "boxd.exchange"
_access = logging.getLogger("boxd.api.access")
_log = logging.getLogger("boxd.api")


class Exchange:
    """One request and what became of it. `route` and `principal` are filled in for the log.

    `closed` is set when the connection is gone, also while nobody reads the request body;
    `answered` is a failure that an inner layer has answered and raised again.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.route = "-"
        self.principal = "-"
        self.status = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.finished = False
        self.answered: Exception | None = None
        self.body_unread = has_body(scope["headers"])
        self.closed: asyncio.Event = scope.get("state", {}).get(CLOSED) or asyncio.Event()
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

    async def answer(self, answer: Answer) -> None:
        """Sends a whole response."""
        await self.send(
            {"type": "http.response.start", "status": answer.status, "headers": answer.lines()}
        )
        await self.send({"type": "http.response.body", "body": answer.body})

    def _complete(self, lines: object) -> list[tuple[bytes, bytes]]:
        complete = list(cast("list[tuple[bytes, bytes]]", lines))
        names = {name for name, _ in complete}
        complete += [line for line in COMMON_HEADERS if line[0] not in names]
        if b"date" not in names:
            complete.append((b"date", formatdate(usegmt=True).encode()))
        if self.body_unread and CLOSE not in complete:
            # What is left of the body would have to be read before the next request.
            complete.append(CLOSE)
        return complete


def exchange_of(scope: Scope) -> Exchange:
    """The exchange that a request belongs to."""
    return cast("Exchange", scope[_EXCHANGE])


class Guard:
    """Wraps the whole application; see the module."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.monotonic()
        exchange = Exchange(scope, receive, send)
        scope = {**scope, _EXCHANGE: exchange}
        try:
            _check(scope)
            await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:
            await _answer_failure(exchange, error)
        finally:
            _access.info(
                "%s %s %d %d ms in=%d out=%d key=%s%s",
                scope["method"],
                exchange.route,
                exchange.status,
                (time.monotonic() - started) * 1000,
                exchange.bytes_in,
                exchange.bytes_out,
                exchange.principal,
                "" if exchange.finished else " unfinished",
            )

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        problem = framing_problem("1.1", scope["raw_path"], scope["query_string"], scope["headers"])
        answer = error_answer(400, problem) if problem else error_answer(404, "no WebSocket here")
        lines = [*answer.lines(), *COMMON_HEADERS, CLOSE]
        await send(
            {
                "type": "websocket.http.response.start",
                "status": answer.status,
                "headers": lines,
            }
        )
        await send({"type": "websocket.http.response.body", "body": answer.body})


def _check(scope: Scope) -> None:
    if scope["method"] in ("CONNECT", "TRACE"):
        refusal = method_not_allowed(SERVED_METHODS)
        raise Refusal(405, str(refusal), [*refusal.headers, CLOSE])
    problem = framing_problem(
        scope["http_version"], scope["raw_path"], scope["query_string"], scope["headers"]
    )
    if problem is not None:
        raise Refusal(400, problem, [CLOSE])


async def _answer_failure(exchange: Exchange, error: Exception) -> None:
    """Answers a failure; a response that has begun stays unfinished: the connection is cut."""
    if exchange.status == 0:
        await exchange.answer(answer_for(error))
    elif exchange.answered is error:
        return
    elif isinstance(error, BoxdError) and not exchange.finished:
        _log.info("response cut short: %s", error)
    else:
        internal_error(error)
