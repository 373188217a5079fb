"""Protocol adapter only. uvicorn's WebSocket protocol, with bounds and honest ends.

What it adds: what a client sends is read ahead up to a bound, so that its pongs are seen while the
application is slow; of pings only the newest is answered while the client does not read; fragments
take no more memory than their bytes; a connection that fails or is shut down lingers, so that the
client sees the close code; whoever does not read its last words is cut.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode
from websockets.server import ServerProtocol

from boxd.api.errors import error_answer
from boxd.api.exchange import CLOSED, LIMIT, PLACE, raw_answer

if TYPE_CHECKING:
    import asyncio

    from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
    from uvicorn.config import Config
    from uvicorn.server import ServerState
    from websockets.frames import Frame
    from websockets.http11 import Request

    from boxd.api.places import Place

AHEAD = 256 * 1024
"""Bytes of whole messages that may wait for the application; then reading pauses."""
WRITE_BUFFER = 256 * 1024
"""Bytes that wait for the client's socket; then the application waits."""
MESSAGE_COST = 512
"""What a message weighs on top of its bytes."""
SLICE = 16 * 1024
"""Bytes that are parsed at a time: small frames take many times their size until they are read."""
CROWD = 500
"""With more frames than that in a slice, the other connections come first before the next one."""
CLOSE_S = 10.0
"""How long a client may take to answer a close, or to read what was sent before it."""
GONE_MS = 30_000
"""After this time without an acknowledgement the kernel gives a connection up. Pings go out also
where their answers are not read, so with them a dead peer is always found within 60 s."""
UNSENT = 128 * 1024
"""Bytes that the kernel takes before it has sent them: the rest waits where it is counted."""
EARLY = "a client must not send anything before its WebSocket is accepted"
STOPPING = "the service is stopping; try again in a moment"
VERSION = (b"sec-websocket-version", b"13")
_PONG = b"\x8a"
_frames_log = logging.getLogger("boxd.api.frames")
_frames_log.setLevel(logging.WARNING)  # below that it would tell header lines, and so keys


class SocketProtocol(WebSocketsSansIOProtocol):
    """One connection after its upgrade. All callbacks run on the loop and never await."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.close_timeout = CLOSE_S
        self.conn = ServerProtocol(max_size=config.ws_max_size, logger=_frames_log)
        self.app_state = {**app_state, LIMIT: self._limit}
        self._closed: asyncio.Event = app_state[CLOSED]
        self._place: Place | None = app_state.get(PLACE)
        self._http: dict[str, Any] = {}
        self._unparsed = bytearray()
        self._message = bytearray()
        self._waiting = 0
        self._ahead = AHEAD
        self._pong: bytes | None = None
        self._deaf = False

    def begin(self, transport: asyncio.Transport, scope: dict[str, Any]) -> None:
        """Takes over a connection; `scope` is that of the request that asks for the upgrade."""
        self._http = scope
        self.connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER)
        _bound_kernel(transport)
        lines = [b"%b: %b\r\n" % line for line in scope["headers"] if _is_handshake(line[0])]
        # Only what the handshake is about: the rest has been parsed, with other bounds.
        super().data_received(b"GET / HTTP/1.1\r\n" + b"".join(lines) + b"\r\n")
        if not self.handshake_initiated:
            self._refuse(400, f"not a WebSocket handshake: {self.conn.handshake_exc}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop when the connection is gone."""
        super().connection_lost(exc)
        if self._place is not None:
            self._place.left()
        self._closed.set()

    def data_received(self, data: bytes) -> None:
        """Called by the loop with what the client sent."""
        if self._deaf or self.transport.is_closing():
            return
        if not self.handshake_complete:
            self._refuse(400, EARLY)
            return
        self._unparsed += data
        self._feed()

    def resume_writing(self) -> None:
        """Called by the loop when the client has read."""
        super().resume_writing()
        self._answer_ping()

    def shutdown(self) -> None:
        """Called by the server when it stops: 1012, or 503 to who waits for its answer."""
        if not self.handshake_complete:
            self._refuse(503, STOPPING)
        elif self.transport.is_closing() or self._deaf:
            return
        elif self.close_sent:
            self._linger()
        else:
            self.conn.send_close(CloseCode.SERVICE_RESTART, STOPPING)
            self.handle_parser_exception()

    # --- handshake ------------------------------------------------------------------------

    def handle_connect(self, event: Request) -> None:
        """Called with the handshake: starts the application, or refuses it."""
        self.request = event
        self.response = self.conn.accept(event)
        self.handshake_initiated = True
        if self.response.status_code != 101:
            text = f"not a WebSocket handshake: {self.conn.handshake_exc}"
            self._refuse(self.response.status_code, text)
            return
        offered = event.headers.get_all("Sec-WebSocket-Protocol")
        self.scope = cast(
            "Any",
            {
                **{name: value for name, value in self._http.items() if name != "method"},
                "type": "websocket",
                "asgi": {"version": self.asgi_version, "spec_version": "2.4"},
                "scheme": self.scheme,
                "subprotocols": [token.strip() for line in offered for token in line.split(",")],
                "state": self.app_state.copy(),
                "extensions": {"websocket.http.response": {}},
            },
        )
        self.queue.put_nowait({"type": "websocket.connect"})
        task = self.loop.create_task(self.run_asgi())
        task.add_done_callback(self.on_task_complete)
        self.tasks.add(task)

    def _refuse(self, status: int, text: str) -> None:
        """Answers the handshake itself; the application, if it runs, sees a client that left."""
        self.transport.write(raw_answer(error_answer(status, text, [VERSION])))
        self.handshake_complete = self.close_sent = self.disconnected = True
        # Now, not when the client hangs up: until it knows, the application holds what it opened.
        self.queue.put_nowait({"type": "websocket.disconnect", "code": CloseCode.ABNORMAL_CLOSURE})
        self._linger()

    # --- reading --------------------------------------------------------------------------

    def _limit(self, size: int) -> None:
        """Messages of more bytes end the connection with 1009, and no more than one waits."""
        self.conn.max_message_size = size
        self._ahead = min(AHEAD, size)

    def _feed(self) -> None:
        while self._unparsed and not (self.read_paused or self._deaf):
            piece = bytes(self._unparsed[:SLICE])
            del self._unparsed[:SLICE]
            self.conn.receive_data(piece)
            crowded = len(self.conn.events) > CROWD
            self._write_out()
            self.handle_events()
            if self.conn.parser_exc is not None and not self._deaf:
                self.handle_parser_exception()
            if crowded and self._unparsed and not self.read_paused:
                self.read_paused = True
                self.transport.pause_reading()
                self.loop.call_soon(self._next_turn)
                return

    def _next_turn(self) -> None:
        """Goes on after others had theirs, unless messages wait for the application by now."""
        if self.read_paused and self._waiting <= self._ahead and not self.transport.is_closing():
            self._read_on()

    def handle_text(self, event: Frame) -> None:
        """Called with the first frame of a text."""
        self.curr_msg_data_type = "text"
        self.handle_cont(event)

    def handle_bytes(self, event: Frame) -> None:
        """Called with the first frame of bytes."""
        self.curr_msg_data_type = "bytes"
        self.handle_cont(event)

    def handle_cont(self, event: Frame) -> None:
        """Called with each further frame of a message."""
        self._message += event.data
        if event.fin:
            self.send_receive_event_to_app()

    def handle_ping(self) -> None:
        """Called for each ping: its answer is on its way, or waits for the client to read."""

    def send_receive_event_to_app(self) -> None:
        """Called at the end of a message."""
        data, self._message = bytes(self._message), bytearray()
        if self.close_sent:
            return
        if self.curr_msg_data_type == "bytes":
            self.queue.put_nowait({"type": "websocket.receive", "bytes": data})
        else:
            try:
                text = data.decode()
            except UnicodeDecodeError:
                self.conn.fail(CloseCode.INVALID_DATA, "a text message is not UTF-8")
                self.handle_parser_exception()
                return
            self.queue.put_nowait({"type": "websocket.receive", "text": text})
        self._waiting += len(data) + MESSAGE_COST
        if self._waiting > self._ahead and not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    async def receive(self) -> ASGIReceiveEvent:
        """The next event for the application."""
        message = await self.queue.get()
        if message["type"] == "websocket.receive":
            data = message.get("bytes")
            size = len(data) if data is not None else len((message.get("text") or "").encode())
            self._waiting -= size + MESSAGE_COST
        if self.read_paused and self._waiting <= self._ahead // 2:
            self._read_on()
        return message

    def _read_on(self) -> None:
        self.read_paused = False
        self._feed()
        if not self.read_paused:
            self.transport.resume_reading()

    # --- writing --------------------------------------------------------------------------

    def _write_out(self) -> None:
        """Sends what reading has brought about, but of several pongs only the last."""
        out = []
        for piece in self.conn.data_to_send():
            if piece[:1] == _PONG:
                self._pong = piece
            elif piece:
                out.append(piece)
        self._answer_ping()
        if out:
            self.transport.write(b"".join(out))

    def _answer_ping(self) -> None:
        if self._pong is not None and self.writable.is_set() and not self.transport.is_closing():
            self.transport.write(self._pong)
            self._pong = None

    async def send(self, message: ASGISendEvent) -> None:
        """What the application sends; waits while the client does not read. ClientDisconnected."""
        if message["type"] == "websocket.close" and self.handshake_complete:
            if not self.close_sent and not self.disconnected:
                await self._send_close(message)
            return
        await self.writable.wait()
        if self.close_sent:
            raise ClientDisconnected
        await super().send(message)

    async def _send_close(self, message: ASGISendEvent) -> None:
        # Its frame takes its place behind what the client has not read: nothing to wait for.
        self.writable.set()
        await super().send(message)
        if self.close_timer is not None:
            self.close_timer.cancel()
            # Not `close`, which waits for a client that reads nothing.
            self.close_timer = self.loop.call_later(self.close_timeout, self.transport.abort)
        self._feed()

    def keepalive_timeout(self) -> None:
        """Called when a ping has found no answer in time.

        Where the answer would not be read, or the ping has not left yet, that says nothing: then
        the kernel tells whether the peer is there (GONE_MS), and the next write learns it.
        """
        if self.read_paused or self.transport.get_write_buffer_size() > 0:
            self.pong_timer = None
            self.send_keepalive_ping()
            return
        super().keepalive_timeout()
        if self.transport.get_write_buffer_size() > 0:
            self.transport.abort()

    # --- ends -----------------------------------------------------------------------------

    def handle_close(self, event: Frame) -> None:
        """Called when the client closes."""
        super().handle_close(event)
        if self.close_timer is None:
            self.close_timer = self.loop.call_later(self.close_timeout, self.transport.abort)

    def handle_parser_exception(self) -> None:
        """Called when the connection fails: sends the close frame that `conn` has ready."""
        close = self.conn.close_sent
        code, reason = (close.code, close.reason) if close else (CloseCode.INTERNAL_ERROR, "")
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self._write_out()
        self.close_sent = True
        self._linger()

    def _linger(self) -> None:
        """Says that nothing more comes and swallows what still does, until the client has left:
        a socket that is closed with data unread takes the last words with it."""
        self._deaf = True
        self._unparsed.clear()
        self._closed.set()
        self.stop_keepalive()
        if self.close_timer is not None:
            self.close_timer.cancel()
        self.close_timer = self.loop.call_later(self.close_timeout, self.transport.abort)
        self.transport.resume_reading()
        with contextlib.suppress(OSError):  # the client has left already
            self.transport.write_eof()


def _is_handshake(name: bytes) -> bool:
    return name in (b"connection", b"upgrade") or name.startswith(b"sec-websocket-")


def _bound_kernel(transport: asyncio.Transport) -> None:
    endpoint = transport.get_extra_info("socket")
    endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_MS)
    endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)
