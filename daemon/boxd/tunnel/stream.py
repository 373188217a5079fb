"""A connection to a port in a box, whichever way it was dialled."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

import asyncssh

BUFFER = 256 * 1024
"""Bytes from the box that may wait here for their reader; then the box's side is held."""


class ByteStream(Protocol):
    """Bytes both ways. One task reads, one writes; any may close."""

    @property
    def closed(self) -> bool:
        """Whether both sides have ended it."""

    async def read(self) -> bytes:
        """The next bytes; empty when the other side has ended what it sends.

        ConnectionError when it was cut.
        """

    async def write(self, data: bytes) -> None:
        """Sends; waits while the other side takes no more. ConnectionError when it was cut."""

    def write_eof(self) -> None:
        """Nothing more follows."""

    def close(self) -> None:
        """Ends it at once; what was not sent is lost. No error when it has ended."""


class ChannelStream(asyncssh.SSHTCPSession[bytes]):
    """A channel of a tunnel as a ByteStream.

    Callbacks of the connection fill `_chunks` and set `_news`; the reader takes from it between its
    awaits.
    """

    def __init__(self) -> None:
        self._chan: asyncssh.SSHTCPChannel[bytes] | None = None
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._held = False
        self._ended = False
        self._lost = False
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def closed(self) -> bool:
        """See ByteStream."""
        return self._lost

    async def read(self) -> bytes:
        """See ByteStream."""
        while not self._chunks:
            if self._ended:
                return b""
            if self._lost:
                raise ConnectionResetError("the connection to the port was cut")
            self._news.clear()
            await self._news.wait()
        data = self._chunks.popleft()
        self._size -= len(data)
        if self._held and self._size <= BUFFER // 2 and self._chan is not None:
            self._held = False
            self._chan.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """See ByteStream."""
        await self._writable.wait()
        if self._chan is None or self._chan.is_closing():
            raise ConnectionResetError("the connection to the port was cut")
        self._chan.write(data)

    def write_eof(self) -> None:
        """See ByteStream."""
        if self._chan is not None:
            self._chan.write_eof()

    def close(self) -> None:
        """See ByteStream."""
        if self._chan is not None:
            self._chan.abort()

    def connection_made(self, chan: asyncssh.SSHTCPChannel[bytes]) -> None:
        self._chan = chan
        chan.set_write_buffer_limits(high=BUFFER)

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self._chunks.append(data)
        self._size += len(data)
        if self._size > BUFFER and not self._held and self._chan is not None:
            self._held = True
            self._chan.pause_reading()
        self._news.set()

    def eof_received(self) -> bool:
        self._ended = True
        self._news.set()
        return True

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._chan = None
        self._lost = True
        self._writable.set()
        self._news.set()
