"""Protocol adapter only. uvicorn's HTTP/1.1 protocol, with ends that clients can tell apart.

What it adds: malformed requests and bodies cut short are answered with `{"error"}`; a connection
that is closed under a request body still being sent lingers, so that the answer is not lost to a
TCP reset; a client that never completes its headers is cut, and one that takes nothing of an answer
for a minute, as it holds a box awake; a body in tiny chunks does not hold the other connections up.
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

from boxd.api.errors import error_answer
from boxd.api.exchange import ABORT, CLOSE, CLOSED, COMMON_HEADERS, PLACE, date_line
from boxd.api.headers import MAX_HEADER_BYTES, has_body
from boxd.api.socket_protocol import EARLY, SocketProtocol

if TYPE_CHECKING:
    from uvicorn.config import Config

    from boxd.api.errors import Answer
    from boxd.api.headers import HeaderLines
    from boxd.api.places import Place, Places

HEADER_TIMEOUT_S = 30.0
"""From the first byte on a connection, or of a further request, to the end of the headers."""
LINGER_IDLE_S = 2.0
LINGER_S = 10.0
"""A closed connection swallows what the client still sends: until it pauses, at most this long."""
STALLED_S = 60.0
"""While something waits for it a client takes, or its kernel does, at least a byte in this time."""
WRITE_BUFFER = 192 * 1024
"""Bytes that wait for a client's socket; then who writes waits."""
CROWD = 500
"""Parsed at a time, in events: after them the other connections come first. What one read brings
of a body with Content-Length is one event; of tiny chunks it is tens of thousands."""
AT_ONCE = struct.pack("ii", 1, 0)
"""Linger for 0 seconds: a socket that is closed resets its connection."""
CUT_SHORT = "the request ended before its body was complete; nothing was changed"
_log = logging.getLogger(__name__)
MALFORMED = "this is not a valid HTTP/1.1 request"


class ListenerState(ServerState):
    """What the connections of one listener share."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.places = places


class _Parser(h11.Connection):
    """h11, which pauses after so many events; what it has not parsed waits in its own buffer."""

    held = False
    """Whether it paused: what waits may hold further events."""
    _left = 0

    def begin(self) -> None:
        """A turn begins."""
        self.held = False
        self._left = CROWD

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next event; NEED_DATA also at the end of the turn. RemoteProtocolError."""
        if self._left == 0:
            self.held = True
            return h11.NEED_DATA
        self._left -= 1
        return super().next_event()


class HttpProtocol(H11Protocol):
    """One connection. All methods run on the loop and never await: nothing interleaves.

    While received bytes wait for the next turn nothing is read, so they are at most one read, and
    the end of what the client sends is learned after them.
    """

    _turn: asyncio.Handle | None = None
    _timer: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _place: Place | None = None
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
        self.conn = self._parser = _Parser(h11.SERVER, most)

    def connection_made(self, made: asyncio.BaseTransport) -> None:
        """Called by the loop for a new connection."""
        transport = cast("asyncio.Transport", made)
        self._closed = asyncio.Event()
        self._closer = _LingeringTransport(transport, self)
        self.app_state = {**self.app_state, CLOSED: self._closed, ABORT: partial(_reset, transport)}
        super().connection_made(cast("asyncio.Transport", self._closer))
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER)
        if isinstance(self.server_state, ListenerState):
            address = self.client[0] if self.client else ""
            self._place = self.server_state.places.admit(address, self._closer.transport.abort)
            if self._place is None:
                self._closer.transport.abort()
            self.app_state[PLACE] = self._place
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop when the connection is gone."""
        self._closer.gone()
        self._stop_watching()
        self._end_stall()
        self._end_turn()
        if self._place is not None:
            self._place.left()
        super().connection_lost(exc)
        self._closed.set()

    def data_received(self, data: bytes) -> None:
        """Called by the loop with what the client sent."""
        if self._closer.lingering:
            self._closer.swallow()
            return
        super().data_received(data)
        self._watch_headers()

    def pause_writing(self) -> None:
        """Called by the loop when much waits for the client."""
        super().pause_writing()
        self._end_stall()
        self._watch_stall(_unsent(self._closer.transport))

    def resume_writing(self) -> None:
        """Called by the loop when the client has read."""
        super().resume_writing()
        self._end_stall()

    def _watch_stall(self, before: int) -> None:
        self._stalled = self.loop.call_later(STALLED_S, self._look, before)

    def _look(self, before: int) -> None:
        """Nothing is added to what waits, so a client that takes something makes it less."""
        now = _unsent(self._closer.transport)
        if now < before:
            self._watch_stall(now)
            return
        self._stalled = None
        _log.info("a client took nothing of its answer for %g s: it is cut off", STALLED_S)
        _reset(self._closer.transport)

    def _end_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def eof_received(self) -> None:
        """Called when the client sends no more; one that stops inside a body is told so."""
        if self.conn.their_state is h11.SEND_BODY and not self._closer.lingering:
            self._cut_short = True
            self.conn.receive_data(b"")
            self.handle_events()

    def handle_events(self) -> None:
        """Called when there is something to parse. What is too much for one turn waits."""
        self._parser.begin()
        super().handle_events()
        if not self._parser.held:
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
        """Goes on after others had theirs."""
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
        """Called for what the parser refuses; closes without an answer if one has begun."""
        del msg
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._write_answer(error_answer(400, CUT_SHORT if self._cut_short else MALFORMED))
        self.transport.close()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Called for a request to upgrade. From here on the connection is the other protocol's."""
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


def _upgrade_refusal(method: str, version: str, lines: HeaderLines) -> Answer | None:
    """Why a request cannot become a WebSocket: what a proxy in front would read differently."""
    if method != "GET":
        return error_answer(405, "a WebSocket begins with GET", [(b"allow", b"GET")])
    if version != "1.1" or has_body(lines):
        return error_answer(400, "a WebSocket begins with HTTP/1.1 and without a body")
    return None


def _unsent(transport: asyncio.Transport) -> int:
    """Bytes that the other side has not acknowledged: here, and in the kernel."""
    queued = array.array("i", [0])
    fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, queued)
    return transport.get_write_buffer_size() + queued[0]


def _reset(transport: asyncio.Transport) -> None:
    """Ends a connection so that its client sees a failure, not an end."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
    transport.abort()


class _LingeringTransport:
    """A transport whose `close` waits for the client while a request body is being sent.

    Closing a socket with unread data resets the connection, and the client may lose the answer.
    So: say that nothing more comes, swallow what still arrives for a bounded time, then close.
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
        """Sends, unless the connection is lost: its writers hear of that a turn of the loop later,
        and asyncio complains of what they write until then."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def resume_reading(self) -> None:
        """Reads on, or will when what has been read is parsed."""
        if not self._protocol.behind:
            self.transport.resume_reading()

    def is_closing(self) -> bool:
        """True as soon as `close` was called."""
        return self.lingering or self.transport.is_closing()

    def close(self) -> None:
        """Closes now, or after the client has stopped sending, at most LINGER_S later."""
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
        """Called for bytes that nobody wants: they show that the client is not done."""
        self._swallowed = True

    def _tick(self) -> None:
        loop = self._protocol.loop
        if self._timer is not None and not (self._swallowed and loop.time() < self._deadline):
            self.transport.close()
            return
        self._swallowed = False
        self._timer = loop.call_later(LINGER_IDLE_S, self._tick)

    def gone(self) -> None:
        """The connection is lost: no timer stays."""
        if self._timer is not None:
            self._timer.cancel()
