"""Protocol adapter only. uvicorn's HTTP/1.1 protocol, with ends that clients can tell apart.

What it adds: malformed requests and bodies cut short are answered with `{"error"}`; a connection
that is closed under a request body still being sent lingers, so that the answer is not lost to a
TCP reset; a client that never completes its headers is cut.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from boxd.api.errors import error_answer
from boxd.api.guard import CLOSE, CLOSED, COMMON_HEADERS

if TYPE_CHECKING:
    from boxd.api.errors import Answer

HEADER_TIMEOUT_S = 30.0
"""From the first byte on a connection, or of a further request, to the end of the headers."""
LINGER_IDLE_S = 2.0
LINGER_S = 10.0
"""A closed connection swallows what the client still sends: until it pauses, at most this long."""
WRITE_BUFFER = 256 * 1024
CUT_SHORT = "the request ended before its body was complete; nothing was changed"
MALFORMED = "this is not a valid HTTP/1.1 request"


class HttpProtocol(H11Protocol):
    """One connection. All methods run on the loop and never await: nothing interleaves."""

    _timer: asyncio.TimerHandle | None = None
    _cut_short = False
    _served = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop for a new connection."""
        self._closed = asyncio.Event()
        self._closer = _LingeringTransport(cast("asyncio.Transport", transport), self)
        self.app_state = {**self.app_state, CLOSED: self._closed}
        super().connection_made(cast("asyncio.Transport", self._closer))
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER)
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop when the connection is gone."""
        self._closer.gone()
        self._stop_watching()
        super().connection_lost(exc)
        self._closed.set()

    def data_received(self, data: bytes) -> None:
        """Called by the loop with what the client sent."""
        if self._closer.lingering:
            self._closer.swallow()
            return
        super().data_received(data)
        self._watch_headers()

    def eof_received(self) -> None:
        """Called when the client sends no more; one that stops inside a body is told so."""
        if self.conn.their_state is h11.SEND_BODY and not self._closer.lingering:
            self._cut_short = True
            self.conn.receive_data(b"")
            self.handle_events()

    def send_400_response(self, msg: str) -> None:
        """Called for what the parser refuses; closes without an answer if one has begun."""
        del msg
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._write_answer(error_answer(400, CUT_SHORT if self._cut_short else MALFORMED))
        self.transport.close()

    def _write_answer(self, answer: Answer) -> None:
        lines = [*answer.lines(), *COMMON_HEADERS, CLOSE]
        head = h11.Response(status_code=answer.status, headers=lines, reason=b"Bad Request")
        for event in (head, h11.Data(data=answer.body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")

    def on_response_complete(self) -> None:
        """Called by uvicorn at the end of a response."""
        self._served = True
        super().on_response_complete()
        self._watch_headers()

    def _watch_headers(self) -> None:
        """Runs the header timer while, and only while, a request has begun but is not parsed."""
        begun = not self._served or bool(self.conn.trailing_data[0])
        waiting = self.conn.their_state is h11.IDLE and begun
        if not waiting:
            self._stop_watching()
        elif self._timer is None:
            self._timer = self.loop.call_later(HEADER_TIMEOUT_S, self._headers_late)

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _headers_late(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()


class _LingeringTransport:
    """A transport whose `close` waits for the client while a request body is being sent.

    Closing a socket with unread data resets the connection, and the client may lose the answer.
    So: say that nothing more comes, swallow what still arrives for a bounded time, then close.
    """

    def __init__(self, transport: asyncio.Transport, protocol: HttpProtocol) -> None:
        self._transport = transport
        self._protocol = protocol
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._swallowed = False
        self.lingering = False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 passes on whatever a transport has
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """True as soon as `close` was called."""
        return self.lingering or self._transport.is_closing()

    def close(self) -> None:
        """Closes now, or after the client has stopped sending, at most LINGER_S later."""
        if self.is_closing():
            return
        state = self._protocol.conn.their_state
        if state not in (h11.SEND_BODY, h11.ERROR) or not self._transport.can_write_eof():
            self._transport.close()
            return
        self.lingering = True
        self._deadline = self._protocol.loop.time() + LINGER_S
        self._transport.write_eof()
        self._transport.resume_reading()
        self._tick()

    def swallow(self) -> None:
        """Called for bytes that nobody wants: they show that the client is not done."""
        self._swallowed = True

    def _tick(self) -> None:
        loop = self._protocol.loop
        if self._timer is not None and not (self._swallowed and loop.time() < self._deadline):
            self._transport.close()
            return
        self._swallowed = False
        self._timer = loop.call_later(LINGER_IDLE_S, self._tick)

    def gone(self) -> None:
        """The connection is lost: no timer stays."""
        if self._timer is not None:
            self._timer.cancel()
