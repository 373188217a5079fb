"""Protocol adapter only. Connects a client's WebSocket to the WebSocket of an app in a box.

The bridge passes on whole messages in order, and the close code and reason of either side. It does
not pass on pings.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from websockets.exceptions import InvalidState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import OPEN, SEND_EOF, Protocol, Side
from websockets.utils import accept_key, generate_key

from boxd.errors import BadAnswer
from boxd.http.proxy.rewriting import response_lines
from boxd.http.proxy.upstream import SWITCHING, Upstream
from boxd.http.requests.body import ClientGone
from boxd.http.requests.exchange import cancel
from boxd.http.requests.websocket import INTERNAL, NO_CODE, NORMAL, TOO_BIG

if TYPE_CHECKING:
    from boxd.http.proxy.calls import Call
    from boxd.http.proxy.upstream import Head
    from boxd.http.requests.websocket import Socket
    from boxd.tunnel.stream import ByteStream

    Lines = list[tuple[bytes, bytes]]

MAX_MESSAGE = 16 * 1024 * 1024
MAX_REFUSAL = 1024 * 1024
"""Maximum size of the body with which an app refuses a WebSocket, in bytes."""
CLOSE_S = 5.0
"""Seconds within which an app must answer a close."""
REST_S = 60.0
"""Seconds within which an app must read the remaining data of a client that has left."""
SLICE = 16 * 1024
"""Bytes that are parsed in one step: parsed small frames take many times their size in memory."""
MAX_OWED = 1000
"""Maximum number of pongs that wait for an app."""
LOST = 1006
"""Close code of a WebSocket that ended without a close frame."""
_OURS = frozenset({b"sec-websocket-accept", b"sec-websocket-extensions", b"sec-websocket-protocol"})
_HANDSHAKE = frozenset(
    {b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-extensions"}
)


async def bridge(socket: Socket, call: Call, stream: ByteStream) -> None:
    """Serve a client's WebSocket to its end.

    Raises BadAnswer for an app that does not speak WebSocket.
    """
    upstream = Upstream(stream, call.place.port)
    key = generate_key()
    lines = [line for line in call.lines if line[0] not in _HANDSHAKE]
    lines += [(b"sec-websocket-version", b"13"), (b"sec-websocket-key", key.encode())]
    first = asyncio.create_task(socket.next(), name="websocket input")
    asking = asyncio.create_task(_ask(upstream, call.target, lines), name="websocket handshake")
    try:
        await asyncio.wait({first, asking}, return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            raise ClientGone
        head = asking.result()
        lines = response_lines(head.lines, call.place, call.client)
        if head.status != SWITCHING:
            await socket.decline(head.status, lines, await _body(upstream))
            return
        subprotocol = _subprotocol(head, key, socket.subprotocols, call.place.port)
        await socket.accept(subprotocol, [line for line in lines if line[0] not in _OURS])
        await _pump(socket, first, AppSocket(stream, upstream.trailing))
    finally:
        await cancel(first, asking)


async def _ask(upstream: Upstream, target: bytes, lines: Lines) -> Head:
    with suppress(ConnectionError):  # now read the data that the app sent before it closed
        await upstream.upgrade(target, lines)
    return await upstream.head()


async def _body(upstream: Upstream) -> bytes:
    body = bytearray()
    async for data in upstream.read():
        body += data
        if len(body) > MAX_REFUSAL:
            raise BadAnswer(f"the app refuses the WebSocket with more than {MAX_REFUSAL} bytes")
    return bytes(body)


def _subprotocol(head: Head, key: str, offered: list[str], port: int) -> str | None:
    """Return the subprotocol of a valid handshake response, or None.

    Raises BadAnswer if the response is invalid.
    """
    values = {
        name: [value.decode("latin-1").strip() for line, value in head.lines if line == name]
        for name in _OURS
    }
    subprotocol = values[b"sec-websocket-protocol"]
    valid = (
        values[b"sec-websocket-accept"] == [accept_key(key)]
        and not values[b"sec-websocket-extensions"]
        and (not subprotocol or (len(subprotocol) == 1 and subprotocol[0] in offered))
    )
    if not valid:
        raise BadAnswer(f"port {port} of the box sent an invalid WebSocket handshake response")
    return subprotocol[0] if subprotocol else None


async def _pump(socket: Socket, first: asyncio.Task[bytes | str | None], app: AppSocket) -> None:
    """Pass on messages until one side ends, then close the other side after all messages."""
    incoming = asyncio.create_task(_to_app(socket, first, app), name="websocket to app")
    outgoing = asyncio.create_task(_to_client(app, socket), name="websocket to client")
    pings = asyncio.create_task(app.answer_pings(), name="websocket pings")
    disconnect = asyncio.create_task(socket.closed.wait(), name="client gone")
    first_of = partial(asyncio.wait, return_when=asyncio.FIRST_COMPLETED)
    try:
        await first_of({incoming, outgoing, disconnect})
        if not outgoing.done():
            await first_of({incoming, outgoing}, timeout=REST_S)
        if outgoing.done():
            outgoing.result()
            await socket.close(*app.ending)
            await app.finish()
        elif incoming.done():
            incoming.result()
            await app.close(socket.close_code, socket.close_reason)
            await asyncio.wait({outgoing}, timeout=CLOSE_S)
    finally:
        await cancel(incoming, outgoing, pings, disconnect)


async def _to_app(socket: Socket, first: asyncio.Task[bytes | str | None], app: AppSocket) -> None:
    message = await first
    while message is not None:
        await app.send(message)
        message = await socket.next()


async def _to_client(app: AppSocket, socket: Socket) -> None:
    """Pass on messages until the app has ended.

    After the client has gone, the function still reads messages, and drops them. Otherwise the app
    could block on writing, and never read the client's last messages and its close.
    """
    with suppress(ClientGone):
        while (message := await app.next()) is not None:
            await socket.send(message)
    while await app.next() is not None:
        pass


class AppSocket:
    """The app's side, after the handshake. One task reads, one sends, one answers pings.

    `_protocol` never awaits. Critical section: `_sending` is held while a task writes, since a
    message can be several pieces. A separate task sends the pongs. An app that does not read while
    it writes must not block the task that reads from it.
    """

    def __init__(self, stream: ByteStream, initial: bytes) -> None:
        """`initial`: bytes that arrived right after the handshake."""
        self._stream = stream
        self._protocol = Protocol(Side.CLIENT, state=OPEN, max_size=MAX_MESSAGE)
        self._sending = asyncio.Lock()
        self._pongs: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._unparsed = memoryview(initial)
        self._frames: deque[Frame] = deque()
        self._message = bytearray()
        """Received fragments of the next message, joined, so they take no more than their bytes."""
        self._text = False
        self._over = False

    @property
    def ending(self) -> tuple[int, str]:
        """Close code and reason for the client, once `next` has returned None."""
        received = self._protocol.close_rcvd
        if received is not None and self._protocol.parser_exc is None:
            return (NORMAL if received.code == NO_CODE else received.code), received.reason
        close_sent = self._protocol.close_sent
        if close_sent is not None and close_sent.code == TOO_BIG:
            return TOO_BIG, f"the app sent a message of more than {MAX_MESSAGE} bytes"
        return INTERNAL, "the connection to the app was lost"

    async def next(self) -> bytes | str | None:
        """Return the next message; None when the app has closed or is gone."""
        while True:
            while self._frames:
                message = self._add_frame(self._frames.popleft())
                if message is not None:
                    return message
            if self._over:
                return None
            try:
                if len(self._pongs) > MAX_OWED:
                    await self._pay()
                if not self._unparsed:
                    self._unparsed = memoryview(await self._stream.read())
            except ConnectionError:
                self._unparsed = memoryview(b"")
            if self._unparsed:
                self._parse()
                await asyncio.sleep(0)  # an app with many small frames must not starve other tasks
            else:
                self._over = True
                self._protocol.receive_eof()

    async def answer_pings(self) -> None:
        """Send waiting pongs to the app, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            with suppress(ConnectionError):  # the task that reads detects the loss
                await self._pay()

    async def send(self, message: bytes | str) -> None:
        """Send one message; wait while the app does not read. Do nothing if the app has ended."""
        with suppress(ConnectionError, InvalidState):
            if isinstance(message, str):
                self._protocol.send_text(message.encode())
            else:
                self._protocol.send_binary(message)
            await self._write(self._protocol.data_to_send())

    async def close(self, code: int, reason: str) -> None:
        """Close the app's side with the client's close code.

        Raises nothing if the app has ended or does not read within CLOSE_S.
        """
        with suppress(ConnectionError, InvalidState, TimeoutError):
            self._protocol.send_close({NO_CODE: NORMAL, LOST: INTERNAL}.get(code, code), reason)
            async with asyncio.timeout(CLOSE_S):
                await self._write(self._protocol.data_to_send())

    async def finish(self) -> None:
        """Send the remaining data, then wait up to CLOSE_S for the app to end the connection."""
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._pay()
                while await self._stream.read():
                    pass

    def _parse(self) -> None:
        self._protocol.receive_data(bytes(self._unparsed[:SLICE]))
        self._unparsed = self._unparsed[SLICE:]
        self._frames += [
            event for event in self._protocol.events_received() if isinstance(event, Frame)
        ]
        self._owe()
        if self._protocol.parser_exc is not None or self._protocol.close_rcvd is not None:
            self._over = True

    def _owe(self) -> None:
        self._pongs += [piece for piece in self._protocol.data_to_send() if piece is not SEND_EOF]
        if self._pongs:
            self._news.set()

    def _add_frame(self, frame: Frame) -> bytes | str | None:
        """Add a frame; return the message that it completes, or None."""
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._text = frame.opcode is Opcode.TEXT
        elif frame.opcode is not Opcode.CONT:
            return None
        self._message += frame.data
        if not frame.fin:
            return None
        message, self._message = bytes(self._message), bytearray()
        if not self._text:
            return message
        try:
            return message.decode()
        except UnicodeDecodeError:
            self._protocol.fail(CloseCode.INVALID_DATA, "not UTF-8")
            self._owe()
            self._frames.clear()
            self._over = True
            return None

    async def _pay(self) -> None:
        async with self._sending:
            while self._pongs:
                await self._stream.write(self._pongs.popleft())

    async def _write(self, pieces: list[bytes]) -> None:
        async with self._sending:
            for data in pieces:
                await self._stream.write(data)
