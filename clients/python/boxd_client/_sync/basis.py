"""Where the two forms of the client differ. Both are written by hand; all else is generated."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from typing import TypeVar

from websockets.sync.client import ClientConnection as Connection
from websockets.sync.client import connect

from boxd_client.deadline import extend
from boxd_client.pieces import Readable, read_pieces

__all__ = ["Connection", "Content", "Stream", "connect", "pause", "pieces"]

T = TypeVar("T")
Stream = Generator[T, None, None]
"""A generator that its user may close."""
Content = bytes | str | Readable | Iterable[bytes]
"""Input of commands and content of files."""


def pause(seconds: float) -> None:
    """Wait for a number of seconds."""
    time.sleep(seconds)


def pieces(content: Content, first: bytes = b"") -> Iterator[bytes]:
    """Yield `first` and the content in pieces. Each piece restarts the deadline of the request."""
    if first:
        yield first
    for piece in read_pieces(content):
        extend()
        yield piece
    extend()
