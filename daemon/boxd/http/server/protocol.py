"""Protocol adapter only. uvicorn's HTTP/1.1 protocol with error responses, timeouts and fairness.

It adds to uvicorn:

- Malformed requests and truncated bodies get a response with `{"error"}`.
- A connection that closes while the client still sends a body lingers. Otherwise a TCP reset could
  destroy the response.
- The service disconnects a client that does not complete its headers. It also disconnects a client
  that reads no byte of a response for a minute, because its request keeps a box awake.
- A body in tiny chunks does not delay other connections.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import logging
import socket
import struct
import termios
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from boxd.http.requests.errors import error_answer
from boxd.http.requests.exchange import ABORT, CLOSE, CLOSED, COMMON_HEADERS, SLOT, date_line
from boxd.http.requests.headers import MAX_HEADER_BYTES, has_body
from boxd.http.server.parser import RequestParser
from boxd.http.server.websocket_protocol import EARLY, SocketProtocol

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

    from boxd.http.requests.errors import Answer
    from boxd.http.requests.headers import HeaderLines
    from boxd.http.server.connection_limits import ConnectionLimits, Slot

HEADER_TIMEOUT_S = 30.0
"""Time limit from the first byte of a connection, or of a further request, to the end of the
headers."""
LINGER_IDLE_S = 2.0
LINGER_S = 10.0
"""A closed connection discards further input until the client pauses for LINGER_IDLE_S, but for at
most LINGER_S."""
STALLED_S = 60.0
"""While output waits, the client or its kernel must read at least one byte in this time."""
WRITE_BUFFER = 192 * 1024
"""Bytes that wait for a client's socket before writers wait too."""
AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER for 0 seconds: closing the socket resets its connection."""
CUT_SHORT = "the request ended before its body was complete; nothing was changed"
_log = logging.getLogger(__name__)


class ListenerState(ServerState):
    """The state that the connections of one listener share."""

    def __init__(self, limits: ConnectionLimits) -> None:
        super().__init__()
        self.limits = limits


class HttpProtocol(H11Protocol):
    """One connection. All methods run on the loop and never await, so they never interleave.

    While received bytes wait for the next turn, the transport does not read. So at most one read
    waits, and the client's EOF arrives after it.
    """

    _turn: asyncio.Handle | None = None
    _timer: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _slot: Slot | None = None
    _cut_short = False
    _served = False

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        most = config.h11_max_incomplete_event_size or MAX_HEADER_BYTES
        self.conn = self._parser = RequestParser(most)

    def connection_made(self, base: asyncio.BaseTransport) -> None:
        """Accept a new connection. The loop calls it."""
        transport = cast("asyncio.Transport", base)
        self._closed = asyncio.Event()
        self._closer = _LingeringTransport(transport, self)
        self.app_state = {**self.app_state, CLOSED: self._closed, ABORT: partial(_reset, transport)}
        super().connection_made(cast("asyncio.Transport", self._closer))
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER)
        if isinstance(self.server_state, ListenerState):
            address = self.client[0] if self.client else ""
            self._slot = self.server_state.limits.admit(address, self._closer.transport.abort)
            if self._slot is None:
                self._closer.transport.abort()
            self.app_state[SLOT] = self._slot
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release all resources of the connection.

        The loop calls it when the connection has ended.
        """
        self._closer.gone()
        self._stop_watching()
        self._end_stall()
        self._end_turn()
        if self._slot is not None:
            self._slot.left()
        super().connection_lost(exc)
        self._closed.set()

    def data_received(self, data: bytes) -> None:
        """Process received bytes. The loop calls it."""
        if self._closer.lingering:
            self._closer.swallow()
            return
        super().data_received(data)
        self._watch_headers()

    def pause_writing(self) -> None:
        """Pause writers and start the stall timer. The loop calls it when the buffer is full."""
        super().pause_writing()
        self._end_stall()
        self._watch_stall(_unsent(self._closer.transport))

    def resume_writing(self) -> None:
        """Resume writers and stop the stall timer.

        The loop calls it when the buffer has drained.
        """
        super().resume_writing()
        self._end_stall()

    def _watch_stall(self, before: int) -> None:
        self._stalled = self.loop.call_later(STALLED_S, self._check_stall, before)

    def _check_stall(self, before: int) -> None:
        """Reset the connection unless the client has read since `before` bytes waited.

        Writers wait, so the number of waiting bytes only falls, and only when the client reads.
        """
        now = _unsent(self._closer.transport)
        if now < before:
            self._watch_stall(now)
            return
        self._stalled = None
        _log.info("disconnected a client that read nothing of its response for %g s", STALLED_S)
        _reset(self._closer.transport)

    def _end_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def eof_received(self) -> None:
        """Refuse a truncated body. The loop calls it when the client ends its data."""
        if self.conn.their_state is h11.SEND_BODY and not self._closer.lingering:
            self._cut_short = True
            self.conn.receive_data(b"")
            self.handle_events()

    def handle_events(self) -> None:
        """Parse received bytes, at most one turn of them; the rest waits. uvicorn calls it."""
        self._parser.begin()
        super().handle_events()
        if not self._parser.paused:
            if self.behind:
                self._end_turn()
                self._read_on()
        elif not self.behind:
            self.transport.pause_reading()
            self._turn = self.loop.call_soon(self._next_turn)

    @property
    def behind(self) -> bool:
        """Whether received bytes wait for the next turn."""
        return self._turn is not None

    def _next_turn(self) -> None:
        """Continue parsing after other connections have had a turn."""
        self._turn = None
        if self.transport.is_closing():
            return
        self.handle_events()
        if not self.behind:
            self._read_on()
        self._watch_headers()

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def _read_on(self) -> None:
        if not self.flow.read_paused:
            self.transport.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """Refuse input that the parser rejected, and close. Send no response if one has begun."""
        del msg
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            status, text = (400, CUT_SHORT) if self._cut_short else self._parser.refusal
            self._write_answer(error_answer(status, text))
            self._leave_application()
        self.transport.close()

    def _leave_application(self) -> None:
        """Drop further output of the application: the protocol has answered the request."""
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            self._closed.set()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over to `SocketProtocol`, or refuse the upgrade. uvicorn calls it."""
        del event
        refusal = _upgrade_refusal(self.scope["method"], self.scope["http_version"], self.headers)
        if refusal is None and self.conn.trailing_data[0]:
            refusal = error_answer(400, EARLY)
        if refusal is not None:
            self._write_answer(refusal)
            self.transport.close()
            return
        self._stop_watching()
        self._end_stall()
        self.connections.discard(self)
        protocol = SocketProtocol(self.config, self.server_state, self.app_state, self.loop)
        self._closer.transport.set_protocol(protocol)
        protocol.begin(self._closer.transport, {**self.scope})

    def _write_answer(self, answer: Answer) -> None:
        lines = [*answer.lines(), *COMMON_HEADERS, date_line(), CLOSE]
        reason = HTTPStatus(answer.status).phrase.encode()
        head = h11.Response(status_code=answer.status, headers=lines, reason=reason)
        for event in (head, h11.Data(data=answer.body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")

    def on_response_complete(self) -> None:
        """Watch for the next request. uvicorn calls it at the end of a response."""
        self._served = True
        super().on_response_complete()
        self._watch_headers()

    def _watch_headers(self) -> None:
        """Run the header timer exactly while a request has begun and its headers are incomplete."""
        request_begun = not self._served or self._parser.has_input
        waiting = self.conn.their_state is h11.IDLE and request_begun
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


def _upgrade_refusal(method: str, version: str, lines: HeaderLines) -> Answer | None:
    """Return the refusal of an upgrade request that a proxy in front may parse differently."""
    if method != "GET":
        return error_answer(405, "a WebSocket handshake must use GET", [(b"allow", b"GET")])
    if version != "1.1" or has_body(lines):
        return error_answer(400, "a WebSocket handshake must use HTTP/1.1 and have no body")
    return None


def _unsent(transport: asyncio.Transport) -> int:
    """Return the bytes that the peer has not acknowledged, in this process and in the kernel."""
    queued = array.array("i", [0])
    fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, queued)
    return transport.get_write_buffer_size() + queued[0]


def _reset(transport: asyncio.Transport) -> None:
    """Reset a connection, so that the client sees an error and not an end of data."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
    transport.abort()


class _LingeringTransport:
    """A transport whose `close` waits while the client still sends a request body.

    Closing a socket that has unread data resets the connection, and the client can lose the
    response. So `close` sends FIN, discards further input for a limited time, and then closes the
    socket.
    """

    def __init__(self, transport: asyncio.Transport, protocol: HttpProtocol) -> None:
        self.transport = transport
        self._protocol = protocol
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._swallowed = False
        self.lingering = False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 passes on whatever a transport has
        return getattr(self.transport, name)

    def write(self, data: bytes) -> None:
        """Write, unless the connection is lost.

        Writers learn of the loss one turn of the loop later; until then asyncio would log a warning
        for each write.
        """
        if not self.transport.is_closing():
            self.transport.write(data)

    def resume_reading(self) -> None:
        """Resume reading, unless received bytes wait for the next turn, which resumes it then."""
        if not self._protocol.behind:
            self.transport.resume_reading()

    def is_closing(self) -> bool:
        """Return whether `close` was called."""
        return self.lingering or self.transport.is_closing()

    def close(self) -> None:
        """Close now, or once the client has stopped sending, at most LINGER_S later."""
        if self.is_closing():
            return
        state = self._protocol.conn.their_state
        if state not in (h11.SEND_BODY, h11.ERROR) or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.lingering = True
        self._deadline = self._protocol.loop.time() + LINGER_S
        self.transport.write_eof()
        self.transport.resume_reading()
        self._tick()

    def swallow(self) -> None:
        """Note that discarded bytes arrived: the client still sends."""
        self._swallowed = True

    def _tick(self) -> None:
        loop = self._protocol.loop
        if self._timer is not None and not (self._swallowed and loop.time() < self._deadline):
            self.transport.close()
            return
        self._swallowed = False
        self._timer = loop.call_later(LINGER_IDLE_S, self._tick)

    def gone(self) -> None:
        """Stop the timer: the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
