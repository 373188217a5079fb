"""A connection to a port in a box, however it was dialled."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

import asyncssh

BUFFER = 256 * 1024
"""Bytes from the box that may wait here for their reader; more pause the box's side."""


class ByteStream(Protocol):
    """Bytes in both directions. One task reads, one task writes; any task may close."""

    @property
    def closed(self) -> bool:
        """Whether both sides have closed the connection."""

    async def read(self) -> bytes:
        """Return the next bytes; empty after the other side's EOF.

        Raises ConnectionError if the connection was lost.
        """

    async def write(self, data: bytes) -> None:
        """Send bytes; wait while the other side accepts no more.

        Raises ConnectionError if the connection was lost.
        """

    def write_eof(self) -> None:
        """Send EOF after the written bytes."""

    def close(self) -> None:
        """Close at once and discard unsent bytes. Does nothing if already closed."""


class ChannelStream(asyncssh.SSHTCPSession[bytes]):
    """A channel of a tunnel as a ByteStream.

    Callbacks of the connection fill `_chunks` and set `_news`; the reader takes chunks between its
    awaits.
    """

    def __init__(self) -> None:
        self._chan: asyncssh.SSHTCPChannel[bytes] | None = None
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._held = False
        self._ended = False
        self._eof_written = False
        self._lost = False
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def closed(self) -> bool:
        """Whether the channel is closed."""
        return self._lost

    async def read(self) -> bytes:
        """Return the next bytes; resume the box's side when half of the buffer is free."""
        while not self._chunks:
            if self._ended:
                return b""
            if self._lost:
                raise ConnectionResetError("the connection to the port was lost")
            self._news.clear()
            await self._news.wait()
        data = self._chunks.popleft()
        self._size -= len(data)
        if self._held and self._size <= BUFFER // 2 and self._chan is not None:
            self._held = False
            self._chan.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes; wait while the channel's window is full."""
        await self._writable.wait()
        if self._chan is None or self._chan.is_closing():
            raise ConnectionResetError("the connection to the port was lost")
        self._chan.write(data)

    def write_eof(self) -> None:
        """Send EOF; close the channel if the box has already sent its EOF."""
        self._eof_written = True
        if self._chan is not None:
            self._chan.write_eof()
            self._close_when_over()

    def close(self) -> None:
        """Abort the channel."""
        if self._chan is not None:
            self._chan.abort()

    def connection_made(self, chan: asyncssh.SSHTCPChannel[bytes]) -> None:
        """Store the channel and set its write buffer."""
        self._chan = chan
        chan.set_write_buffer_limits(high=BUFFER)

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Queue bytes for the reader; pause the box's side above BUFFER."""
        self._chunks.append(data)
        self._size += len(data)
        if self._size > BUFFER and not self._held and self._chan is not None:
            self._held = True
            self._chan.pause_reading()
        self._news.set()

    def eof_received(self) -> bool:
        """Record the box's EOF; keep the channel open for writing."""
        self._ended = True
        self._news.set()
        self._close_when_over()
        return True

    def _close_when_over(self) -> None:
        """Close the channel once both sides have sent EOF; the agent leaves that to the daemon.

        Received bytes stay readable, and written bytes are still sent.
        """
        if self._chan is not None and self._ended and self._eof_written:
            self._chan.close()

    def pause_writing(self) -> None:
        """Block `write`."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Unblock `write`."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake the reader and the writer; both raise ConnectionError unless EOF was received."""
        self._chan = None
        self._lost = True
        self._writable.set()
        self._news.set()
