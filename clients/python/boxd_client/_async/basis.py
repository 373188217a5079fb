"""Where the two forms of the client differ. Both are written by hand; all else is generated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from typing import TypeVar

from websockets.asyncio.client import ClientConnection as AsyncConnection
from websockets.asyncio.client import connect

from boxd_client.deadline import extend
from boxd_client.pieces import Readable, read_pieces

__all__ = ["AsyncConnection", "Content", "Stream", "connect", "pause", "pieces"]

T = TypeVar("T")
Stream = AsyncGenerator[T, None]
"""A generator that its user may close."""
Content = bytes | str | Readable | Iterable[bytes] | AsyncIterable[bytes]
"""Input of commands and content of files."""


async def pause(seconds: float) -> None:
    """Wait for a number of seconds."""
    await asyncio.sleep(seconds)


async def pieces(content: Content, first: bytes = b"") -> AsyncIterator[bytes]:
    """Yield `first` and the content in pieces. Each piece restarts the deadline of the request."""
    if first:
        yield first
    if isinstance(content, AsyncIterable):
        async for piece in content:
            extend()
            yield piece
    else:
        for piece in read_pieces(content):
            extend()
            yield piece
    extend()
