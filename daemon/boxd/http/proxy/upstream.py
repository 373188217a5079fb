"""Protocol adapter only. One HTTP/1.1 request to a server in a box, over a byte stream.

The proxy serialises a new request, so the client's framing never reaches the server.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import h11

from boxd.errors import BadAnswer
from boxd.http.requests.headers import header

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.tunnel.stream import ByteStream

MAX_HEAD_BYTES = 65_536
"""Maximum size of a response's status line and header lines, in bytes."""
MAX_INTERIM_BYTES = 4 * MAX_HEAD_BYTES
"""Maximum number of bytes up to the end of the head, including interim responses."""
TURN = 32
"""Chunks of a response after which other tasks get a turn; a chunk can be one byte."""
LAST_STATUS = 599
SWITCHING = 101
NO_CONTENT = 204
NOT_MODIFIED = 304
_CLOSE = (b"connection", b"close")


@dataclass(frozen=True, slots=True)
class Head:
    """Status and header lines of a response, without framing except Content-Length."""

    status: int
    lines: list[tuple[bytes, bytes]]


class Upstream:
    """One request and its response. One task sends and one task reads, as `ByteStream` allows.

    Both tasks change `_parser`, whose methods never await.
    """

    def __init__(self, stream: ByteStream, port: int) -> None:
        """`port`: the port that error texts name."""
        self._stream = stream
        self._port = port
        self._parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._before_head = 0
        self._method = "GET"
        self._length: int | None = None
        """Length of the response's body, once the head has stated it."""
        self._ended = False

    async def request(
        self,
        method: str,
        target: bytes,
        lines: list[tuple[bytes, bytes]],
        framing: tuple[bytes, bytes] | None,
    ) -> None:
        """Send the head. `framing`: the header line that announces a body; None: no body.

        Raises ConnectionError when the server has closed the connection.
        """
        self._method = method
        framed = [*lines, framing, _CLOSE] if framing is not None else [*lines, _CLOSE]
        await self._send(h11.Request(method=method.encode(), target=target, headers=framed))

    async def upgrade(self, target: bytes, lines: list[tuple[bytes, bytes]]) -> None:
        """Send a complete request that upgrades to a WebSocket.

        Raises ConnectionError, as `request` does.
        """
        lines = [*lines, (b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
        await self._send(h11.Request(method=b"GET", target=target, headers=lines))
        await self._send(h11.EndOfMessage())

    @property
    def trailing(self) -> bytes:
        """The unparsed bytes after the head of a response."""
        return self._parser.trailing_data[0]

    async def body(self, data: bytes) -> None:
        """Send a part of the body. Raises ConnectionError, as `request` does."""
        await self._send(h11.Data(data=data))

    async def end(self) -> None:
        """End the body. Raises ConnectionError, as `request` does."""
        await self._send(h11.EndOfMessage())

    async def head(self) -> Head:
        """Return the head of the final response; 101 only after `upgrade`.

        Raises BadAnswer when the server sends no response, or one that is not HTTP.
        """
        while True:
            event = await self._next(in_body=False)
            if isinstance(event, h11.InformationalResponse):
                if event.status_code == SWITCHING:
                    return Head(SWITCHING, list(event.headers))
                continue
            if not isinstance(event, h11.Response) or event.status_code > LAST_STATUS:
                raise self._unusable(in_body=False)
            if sum(len(name) + len(value) + 4 for name, value in event.headers) > MAX_HEAD_BYTES:
                raise self._unusable(in_body=False)
            head = Head(event.status_code, _without_framing(event))
            if self._method != "HEAD" and event.status_code != NOT_MODIFIED:
                length = header(head.lines, b"content-length")
                self._length = None if length is None else int(length)
            return head

    async def read(self) -> AsyncIterator[bytes]:
        """Yield the response's body. Raises BadAnswer if it is truncated or malformed."""
        if self._length is not None:
            async for data in self._counted(self._length):
                yield data
            return
        for number in count(1):
            event = await self._next(in_body=True)
            if not isinstance(event, h11.Data):
                return
            yield event.data
            if number % TURN == 0:
                await asyncio.sleep(0)

    async def _counted(self, remaining: int) -> AsyncIterator[bytes]:
        """Yield a body of known length without the parser, which would only copy it.

        *Measured*: downloads take half the time.
        """
        data = self.trailing[:remaining]
        while remaining > 0:
            if data:
                yield data
                remaining -= len(data)
            if remaining > 0:
                try:
                    data = (await self._stream.read())[:remaining]
                except ConnectionError:
                    data = b""
                if not data:
                    raise self._unusable(in_body=True)

    async def _send(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> None:
        data = self._parser.send(event)
        if data:
            await self._stream.write(data)

    async def _next(self, *, in_body: bool) -> object:
        while True:
            try:
                event = self._parser.next_event()
                if event is not h11.NEED_DATA:
                    return event
                if not in_body and self._before_head > MAX_INTERIM_BYTES:
                    raise self._unusable(in_body=False)
                data = await self._stream.read()
            except h11.RemoteProtocolError:
                raise self._unusable(in_body=in_body) from None
            except ConnectionError:
                self._ended = True
                raise self._unusable(in_body=in_body) from None
            self._ended = not data
            if not in_body:
                self._before_head += len(data)
            self._parser.receive_data(data)

    def _unusable(self, *, in_body: bool) -> BadAnswer:
        if in_body:
            return BadAnswer(f"port {self._port} of the box ended its response too early")
        if self._ended and self._before_head == 0:
            return BadAnswer(
                f"port {self._port} of the box closed the connection without a response; check the"
                " log of the program that listens there"
            )
        return BadAnswer(
            f"port {self._port} of the box does not answer as an HTTP/1.1 server; for other"
            " protocols use ssh -L"
        )


def _without_framing(response: h11.Response) -> list[tuple[bytes, bytes]]:
    """Return header lines with names in lower case, and Content-Length only if it is valid."""
    lines = [(name, value) for name, value in response.headers if name != b"transfer-encoding"]
    if len(lines) < len(response.headers) or response.status_code == NO_CONTENT:
        return [line for line in lines if line[0] != b"content-length"]
    return lines
