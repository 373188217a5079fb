"""Protocol adapter only. The outermost layer of the HTTP API.

It refuses malformed framing before anything looks at the request, turns every failure into an
answer, adds the headers that all answers carry, and writes the access log (never a query string).
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from boxd.api.body import ClientGone
from boxd.api.errors import Refusal, answer_for, internal_error, method_not_allowed
from boxd.api.exchange import CLOSE, RECORD, Exchange
from boxd.api.headers import framing_problem
from boxd.api.sockets import INTERNAL, Socket, close_code
from boxd.errors import BoxdError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.types import ASGIApp, Receive, Scope, Send

    from boxd.api.exchange import Record

SERVED_METHODS = "GET, HEAD, POST, PUT, DELETE"
_access = logging.getLogger("boxd.api.access")
_log = logging.getLogger("boxd.api")


class Guard:
    """Wraps the whole application; see the module."""

    def __init__(self, app: ASGIApp, named: Callable[[str], str] = str) -> None:
        """`named` puts the name of the front door into texts that lead there."""
        self._app = app
        self._named = named

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        with _logged(scope["method"], exchange):
            try:
                _check(scope)
                await self._app({**scope, RECORD: exchange}, exchange.receive, exchange.send)
            except Exception as error:
                await _answer_failure(exchange, error, self._named)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = Socket(scope, receive, send)
        await receive()  # the handshake; what follows is read by `Socket.next`
        with _logged("WS", socket):
            try:
                _check_framing(scope)
                await self._app({**scope, RECORD: socket}, receive, send)
            except ClientGone:
                return
            except Exception as error:
                await _close_failed(socket, error, self._named)


@contextmanager
def _logged(method: str, record: Record) -> Iterator[None]:
    """Writes the line of the access log at the end. Never a path or a query: they may hold keys."""
    started = time.monotonic()
    try:
        yield
    finally:
        record.leave()
        _access.info(
            "%s %s %d %d ms in=%d out=%d key=%s%s",
            method,
            record.route,
            record.status,
            (time.monotonic() - started) * 1000,
            record.bytes_in,
            record.bytes_out,
            record.principal,
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
    """Answers a failure; a response that has begun stays unfinished: the connection is cut."""
    if exchange.status == 0:
        await exchange.answer(answer_for(error, named))
        return
    if not exchange.finished:
        exchange.cut()
    if exchange.answered is error:
        return
    if isinstance(error, BoxdError):
        _log.info("%s: %s", "after the response" if exchange.finished else "cut short", error)
    else:
        internal_error(error)


async def _close_failed(socket: Socket, error: Exception, named: Callable[[str], str]) -> None:
    """Tells the client of a WebSocket about a failure, as far as it has got."""
    if socket.finished:
        if isinstance(error, BoxdError):
            _log.info("after the end of a WebSocket: %s", error)
        else:
            internal_error(error)
    elif not socket.accepted:
        await socket.refuse(answer_for(error, named))
    elif isinstance(error, BoxdError):
        await socket.close(close_code(error), str(error))
    else:
        internal_error(error)
        await socket.close(INTERNAL, "internal error")
