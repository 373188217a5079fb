"""Protocol adapter only. uvicorn's WebSocket protocol, with limits and reliable close codes.

It adds to uvicorn:

- The service reads ahead of the application up to a limit, so it sees pongs of the client while the
  application is slow.
- While the client does not read, only its newest ping gets a pong.
- Fragments take no more memory than their bytes.
- A connection that fails, or that the service shuts down, lingers, so the client sees the close
  code. The service then disconnects a client that does not read it.
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

from boxd.http.requests.errors import error_answer
from boxd.http.requests.exchange import CLOSED, LIMIT, SLOT, raw_answer

if TYPE_CHECKING:
    import asyncio

    from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
    from uvicorn.config import Config
    from uvicorn.server import ServerState
    from websockets.frames import Frame
    from websockets.http11 import Request

    from boxd.http.server.connection_limits import Slot

AHEAD = 256 * 1024
"""Size of complete messages waiting for the application at which reading pauses, in bytes."""
WRITE_BUFFER = 256 * 1024
"""Bytes that may wait for the client's socket before the application waits."""
MESSAGE_COST = 512
"""Bytes that a waiting message counts in addition to its data."""
SLICE = 16 * 1024
"""Bytes that are parsed in one step: parsed small frames take many times their size in memory."""
CROWD = 500
"""After a slice with more frames than this, other connections get a turn."""
CLOSE_S = 10.0
"""Seconds that a client gets to answer a close, or to read the data before it."""
GONE_MS = 30_000
"""Milliseconds without an acknowledgement after which the kernel ends a connection.

The service sends pings even while it does not read the pongs, so it always detects a dead peer
within 60 s."""
UNSENT = 128 * 1024
"""Unsent bytes that the kernel accepts: the rest waits in the write buffer, where it counts."""
EARLY = "a client must not send anything before its WebSocket is accepted"
STOPPING = "the service is stopping; try again in a moment"
VERSION = (b"sec-websocket-version", b"13")
_PONG = b"\x8a"
_frames_log = logging.getLogger("boxd.http.frames")
_frames_log.setLevel(logging.WARNING)  # at lower levels it would log header lines, and so keys


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
        self._slot: Slot | None = app_state.get(SLOT)
        self._http: dict[str, Any] = {}
        self._unparsed = bytearray()
        self._message = bytearray()
        self._waiting = 0
        self._ahead = AHEAD
        self._pong: bytes | None = None
        self._deaf = False

    def begin(self, transport: asyncio.Transport, scope: dict[str, Any]) -> None:
        """Take over a connection. `scope`: the scope of the upgrade request."""
        self._http = scope
        self.connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER)
        _bound_kernel(transport)
        lines = [b"%b: %b\r\n" % line for line in scope["headers"] if _is_handshake(line[0])]
        # Only the handshake headers: the rest is parsed already, with other limits.
        super().data_received(b"GET / HTTP/1.1\r\n" + b"".join(lines) + b"\r\n")
        if not self.handshake_initiated:
            self._refuse(400, f"not a WebSocket handshake: {self.conn.handshake_exc}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Release all resources of the connection.

        The loop calls it when the connection has ended.
        """
        super().connection_lost(exc)
        if self._slot is not None:
            self._slot.left()
        self._closed.set()

    def data_received(self, data: bytes) -> None:
        """Process received bytes. The loop calls it."""
        if self._deaf or self.transport.is_closing():
            return
        if not self.handshake_complete:
            self._refuse(400, EARLY)
            return
        self._unparsed += data
        self._feed()

    def resume_writing(self) -> None:
        """Resume writers and send a waiting pong. The loop calls it when the buffer has drained."""
        super().resume_writing()
        self._answer_ping()

    def shutdown(self) -> None:
        """Close with 1012, or refuse a handshake with 503. The server calls it when it stops."""
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
        """Start the application for a handshake, or refuse the handshake. uvicorn calls it."""
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
        """Answer the handshake directly; a running application sees a disconnected client."""
        self.transport.write(raw_answer(error_answer(status, text, [VERSION])))
        self.handshake_complete = self.close_sent = self.disconnected = True
        # Now, not when the client hangs up: until then the application would keep its resources.
        self.queue.put_nowait({"type": "websocket.disconnect", "code": CloseCode.ABNORMAL_CLOSURE})
        self._linger()

    # --- reading --------------------------------------------------------------------------

    def _limit(self, size: int) -> None:
        """Close the connection with 1009 for longer messages, and read at most one ahead."""
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
        """Continue after other connections have had a turn, unless too many messages wait."""
        if self.read_paused and self._waiting <= self._ahead and not self.transport.is_closing():
            self._read_on()

    def handle_text(self, event: Frame) -> None:
        """Begin a text message. uvicorn calls it with the first frame."""
        self.curr_msg_data_type = "text"
        self.handle_cont(event)

    def handle_bytes(self, event: Frame) -> None:
        """Begin a binary message. uvicorn calls it with the first frame."""
        self.curr_msg_data_type = "bytes"
        self.handle_cont(event)

    def handle_cont(self, event: Frame) -> None:
        """Add a frame to the current message."""
        self._message += event.data
        if event.fin:
            self.send_receive_event_to_app()

    def handle_ping(self) -> None:
        """Do nothing: `_write_out` sends the pong, or keeps it until the client reads."""

    def send_receive_event_to_app(self) -> None:
        """Queue the complete message for the application."""
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
        """Return the next event for the application."""
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
        """Send the protocol's replies to received frames, but only the last of several pongs."""
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
        """Send a message of the application; wait while the client does not read.

        Raises ClientDisconnected.
        """
        if message["type"] == "websocket.close" and self.handshake_complete:
            if not self.close_sent and not self.disconnected:
                await self._send_close(message)
            return
        await self.writable.wait()
        if self.close_sent:
            raise ClientDisconnected
        await super().send(message)

    async def _send_close(self, message: ASGISendEvent) -> None:
        # The close frame queues behind unread data, so there is nothing to wait for.
        self.writable.set()
        await super().send(message)
        if self.close_timer is not None:
            self.close_timer.cancel()
            # Not `close`, which would wait for a client that reads nothing.
            self.close_timer = self.loop.call_later(self.close_timeout, self.transport.abort)
        self._feed()

    def keepalive_timeout(self) -> None:
        """End the connection after a ping without a pong. uvicorn calls it.

        While the service does not read, or the ping has not left yet, a missing pong proves
        nothing. In that case the kernel detects a dead peer (GONE_MS), and the next write fails.
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
        """Limit the time of the closing handshake. uvicorn calls it when the client closes."""
        super().handle_close(event)
        if self.close_timer is None:
            self.close_timer = self.loop.call_later(self.close_timeout, self.transport.abort)

    def handle_parser_exception(self) -> None:
        """Send the close frame of `conn`. uvicorn calls it when the connection fails."""
        close = self.conn.close_sent
        code, reason = (close.code, close.reason) if close else (CloseCode.INTERNAL_ERROR, "")
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self._write_out()
        self.close_sent = True
        self._linger()

    def _linger(self) -> None:
        """Send FIN and discard received data until the client disconnects.

        Closing a socket that has unread data would destroy the frames that were sent last.
        """
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
