"""Protocol adapter only. The outermost layer of the HTTP API.

The guard refuses malformed framing before any other layer reads the request. It turns every error
into a response, and adds the headers that all responses have. It also writes the access log, which
never contains a query string.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from boxd.errors import BoxdError
from boxd.http.requests.body import ClientGone
from boxd.http.requests.errors import Refusal, answer_for, internal_error, method_not_allowed
from boxd.http.requests.exchange import CLOSE, RECORD, Exchange
from boxd.http.requests.headers import framing_problem
from boxd.http.requests.websocket import INTERNAL, Socket, close_code
from boxd.observation import UNOBSERVED, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.types import ASGIApp, Receive, Scope, Send

    from boxd.http.requests.exchange import Record
    from boxd.observation import Observer

SERVED_METHODS = "GET, HEAD, POST, PUT, DELETE"
LOGGED_METHOD = 24
"""Maximum length of a method in the access log, in characters. A client can send a method that is
as long as a whole head."""
WEBSOCKET = "WS"
"""The method of a WebSocket in logs and for observers."""
OBSERVED_METHODS = frozenset(
    ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", WEBSOCKET]
)
"""Methods that observers see. A client can invent others, which are `OTHER_METHOD`."""
OTHER_METHOD = "OTHER"
NO_STATUS = "none"
"""The status of a request without a response."""
MAX_TRACE_PARENT = 128
"""Maximum length of a `traceparent` header, in bytes."""
_access = logging.getLogger("boxd.http.access")
_log = logging.getLogger("boxd.http")


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(
        self,
        app: ASGIApp,
        named: Callable[[str], str] = str,
        observer: Observer = UNOBSERVED,
    ) -> None:
        """`named` inserts the name of the SSH server into error texts that refer to it."""
        self._app = app
        self._named = named
        self._observer = observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or one WebSocket."""
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        with self._observed(scope, exchange), _logged(scope["method"], exchange):
            try:
                _check(scope)
                await self._app({**scope, RECORD: exchange}, exchange.receive, exchange.send)
            except ClientGone:
                return
            except Exception as error:
                await _answer_failure(exchange, error, self._named)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = Socket(scope, receive, send)
        await receive()  # the handshake; `Socket.next` reads the rest
        with self._observed(scope, socket), _logged(WEBSOCKET, socket):
            try:
                _check_framing(scope)
                await self._app({**scope, RECORD: socket}, receive, send)
            except ClientGone:
                return
            except Exception as error:
                with suppress(ClientGone):  # the client disconnected before the response
                    await _close_failed(socket, error, self._named)

    @contextmanager
    def _observed(self, scope: Scope, record: Record) -> Iterator[None]:
        """Report the request to the observer, with its route and its status."""
        with self._observer.work(Work.HTTP, parent=_trace_parent(scope)) as observation:
            try:
                yield
            finally:
                method = scope.get("method", WEBSOCKET)
                shown_method = method if method in OBSERVED_METHODS else OTHER_METHOD
                status = str(record.status) if record.status else NO_STATUS
                observation.end_as(f"{shown_method} {record.route}", status)


def _trace_parent(scope: Scope) -> str:
    """Return the `traceparent` header of a request, or "" without a single valid-sized one."""
    values = [value for name, value in scope["headers"] if name == b"traceparent"]
    if len(values) != 1 or len(values[0]) > MAX_TRACE_PARENT:
        return ""
    return str(values[0].decode("latin-1"))


@contextmanager
def _logged(method: str, record: Record) -> Iterator[None]:
    """Write the access log line at the end, without path and query: these can contain keys."""
    started = time.monotonic()
    try:
        yield
    finally:
        record.leave()
        _access.info(
            "%s %s %d %d ms in=%d out=%d key=%s id=%s%s",
            method[:LOGGED_METHOD],
            record.route,
            record.status,
            (time.monotonic() - started) * 1000,
            record.bytes_in,
            record.bytes_out,
            record.principal,
            record.id,
            "" if record.finished else " unfinished",
        )


def _check(scope: Scope) -> None:
    if scope["method"] in ("CONNECT", "TRACE"):
        refusal = method_not_allowed(SERVED_METHODS)
        raise Refusal(405, str(refusal), [*refusal.headers, CLOSE])
    _check_framing(scope)


def _check_framing(scope: Scope) -> None:
    problem = framing_problem(
        scope["http_version"], scope["raw_path"], scope["query_string"], scope["headers"]
    )
    if problem is not None:
        raise Refusal(400, problem, [CLOSE])


async def _answer_failure(
    exchange: Exchange, error: Exception, named: Callable[[str], str]
) -> None:
    """Send the response to an error. If a response has begun, it stays incomplete."""
    if exchange.status == 0:
        await exchange.answer(answer_for(error, named))
        return
    if not exchange.finished:
        exchange.cut()
    if isinstance(error, BoxdError):
        _log.info(
            "%s: %s", "error after the response" if exchange.finished else "response aborted", error
        )
    else:
        internal_error(error)


async def _close_failed(socket: Socket, error: Exception, named: Callable[[str], str]) -> None:
    """Report an error to the client of a WebSocket: as a response, or as a close code."""
    if socket.finished:
        if isinstance(error, BoxdError):
            _log.info("error after the end of a WebSocket: %s", error)
        else:
            internal_error(error)
    elif not socket.accepted:
        await socket.refuse(answer_for(error, named))
    elif isinstance(error, BoxdError):
        await socket.close(close_code(error), str(error))
    else:
        internal_error(error)
        await socket.close(INTERNAL, "internal error")
