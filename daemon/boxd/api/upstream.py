"""Protocol adapter only. One HTTP/1.1 request to a server in a box, over a byte stream.

The request is written anew from its parts, so that nothing of the client's framing gets there.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import h11

from boxd.api.headers import header
from boxd.errors import BadAnswer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.tunnel.stream import ByteStream

MAX_HEAD_BYTES = 65_536
"""Most bytes of an answer's status line and header lines."""
MAX_INTERIM_BYTES = 4 * MAX_HEAD_BYTES
"""Most bytes that come before the end of the head, interim answers with it."""
TURN = 32
"""After so many chunks of an answer others have their turn; chunks may be of a byte each."""
LAST_STATUS = 599
SWITCHING = 101
NO_CONTENT = 204
NOT_MODIFIED = 304
_CLOSE = (b"connection", b"close")


@dataclass(frozen=True, slots=True)
class Head:
    """Status and header lines of an answer, without its framing but for Content-Length."""

    status: int
    lines: list[tuple[bytes, bytes]]


class Upstream:
    """One request and its answer. One task sends, one reads; see `ByteStream`.

    What is sent and read changes `_parser`, which never awaits.
    """

    def __init__(self, stream: ByteStream, port: int) -> None:
        """`port`: how the server is called in errors."""
        self._stream = stream
        self._port = port
        self._parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._before_head = 0
        self._method = "GET"
        self._length: int | None = None
        """Of the answer's body, once its head tells it."""
        self._ended = False

    async def request(
        self,
        method: str,
        target: bytes,
        lines: list[tuple[bytes, bytes]],
        framing: tuple[bytes, bytes] | None,
    ) -> None:
        """Sends the head. `framing`: the line that announces a body; None: there is none.

        ConnectionError when the server has cut the connection.
        """
        self._method = method
        framed = [*lines, framing, _CLOSE] if framing is not None else [*lines, _CLOSE]
        await self._send(h11.Request(method=method.encode(), target=target, headers=framed))

    async def upgrade(self, target: bytes, lines: list[tuple[bytes, bytes]]) -> None:
        """Sends a whole request that asks for a WebSocket. ConnectionError as above."""
        lines = [*lines, (b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
        await self._send(h11.Request(method=b"GET", target=target, headers=lines))
        await self._send(h11.EndOfMessage())

    @property
    def trailing(self) -> bytes:
        """What came behind the head of an answer, unparsed."""
        return self._parser.trailing_data[0]

    async def body(self, data: bytes) -> None:
        """Sends a part of the body. ConnectionError as above."""
        await self._send(h11.Data(data=data))

    async def end(self) -> None:
        """The body is complete. ConnectionError as above."""
        await self._send(h11.EndOfMessage())

    async def head(self) -> Head:
        """The answer's head, interim ones left out; 101 only to who asked for an upgrade.

        BadAnswer for what is no HTTP answer, and for none.
        """
        while True:
            event = await self._next(begun=False)
            if isinstance(event, h11.InformationalResponse):
                if event.status_code == SWITCHING:
                    return Head(SWITCHING, list(event.headers))
                continue
            if not isinstance(event, h11.Response) or event.status_code > LAST_STATUS:
                raise self._unusable(begun=False)
            if sum(len(name) + len(value) + 4 for name, value in event.headers) > MAX_HEAD_BYTES:
                raise self._unusable(begun=False)
            head = Head(event.status_code, _without_framing(event))
            if self._method != "HEAD" and event.status_code != NOT_MODIFIED:
                length = header(head.lines, b"content-length")
                self._length = None if length is None else int(length)
            return head

    async def read(self) -> AsyncIterator[bytes]:
        """The answer's body. BadAnswer when it is cut short, or malformed."""
        if self._length is not None:
            async for data in self._counted(self._length):
                yield data
            return
        for number in count(1):
            event = await self._next(begun=True)
            if not isinstance(event, h11.Data):
                return
            yield event.data
            if number % TURN == 0:
                await asyncio.sleep(0)

    async def _counted(self, left: int) -> AsyncIterator[bytes]:
        """A body whose length is known: the parser would only copy it.

        *Measured*: downloads take half the time.
        """
        data = self.trailing[:left]
        while left > 0:
            if data:
                yield data
                left -= len(data)
            if left > 0:
                try:
                    data = (await self._stream.read())[:left]
                except ConnectionError:
                    data = b""
                if not data:
                    raise self._unusable(begun=True)

    async def _send(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> None:
        data = self._parser.send(event)
        if data:
            await self._stream.write(data)

    async def _next(self, *, begun: bool) -> object:
        while True:
            try:
                event = self._parser.next_event()
                if event is not h11.NEED_DATA:
                    return event
                if not begun and self._before_head > MAX_INTERIM_BYTES:
                    raise self._unusable(begun=False)
                data = await self._stream.read()
            except h11.RemoteProtocolError:
                raise self._unusable(begun=begun) from None
            except ConnectionError:
                self._ended = True
                raise self._unusable(begun=begun) from None
            self._ended = not data
            if not begun:
                self._before_head += len(data)
            self._parser.receive_data(data)

    def _unusable(self, *, begun: bool) -> BadAnswer:
        if begun:
            return BadAnswer(f"port {self._port} of the box ended its answer too early")
        if self._ended and self._before_head == 0:
            return BadAnswer(
                f"port {self._port} of the box closed the connection without an answer; see what"
                " the program there logs"
            )
        return BadAnswer(
            f"port {self._port} of the box does not answer as an HTTP/1.1 server; for other"
            " protocols use ssh -L"
        )


def _without_framing(response: h11.Response) -> list[tuple[bytes, bytes]]:
    """Header lines with names in lower case, Content-Length where it tells the body's length."""
    lines = [(name, value) for name, value in response.headers if name != b"transfer-encoding"]
    if len(lines) < len(response.headers) or response.status_code == NO_CONTENT:
        return [line for line in lines if line[0] != b"content-length"]
    return lines
