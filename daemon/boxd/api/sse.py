"""Protocol adapter only. Server-sent events, written by hand: one ASGI message per event."""

from __future__ import annotations

import asyncio
import binascii
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Send

MAX_RAW = 64 * 1024
"""Bytes before base64 in one event."""
KEEPALIVE_S = 15.0
LAST_WORDS_S = 1.0
"""How long the text of a stream that is cut may wait for a client that does not read."""
_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"x-accel-buffering", b"no"),
]


def encode_event(name: bytes, data: bytes) -> bytes:
    """One event whose data is a single line."""
    return b"event: %b\ndata: %b\n\n" % (name, data)


def _encoded(name: bytes, data: bytes) -> bytes:
    """An event with base64. Nothing else of it stays with who waits to send it."""
    return encode_event(name, binascii.b2a_base64(data, newline=False))


class EventStream:
    """One response. Messages never mix: each is sent whole under `_turn`.

    `_open` is set once with the 200 and cleared once before the last event is sent.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._turn = asyncio.Lock()
        self._open = False

    async def start(self) -> None:
        """Sends the 200."""
        self._open = True
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})

    async def chunk(self, stream: str, data: bytes) -> None:
        """Bytes of a stream as base64 events; waits while the client does not read."""
        name = stream.encode()
        for start in range(0, len(data), MAX_RAW):
            await self._write(_encoded(name, data[start : start + MAX_RAW]))

    async def keepalive(self) -> None:
        """Sends a comment every 15 s, whatever else flows, until it is cancelled."""
        while True:
            await asyncio.sleep(KEEPALIVE_S)
            await self._write(b": keepalive\n\n")

    async def finish(self, name: bytes, data: bytes) -> None:
        """The last event and the end of the response."""
        self._open = False
        await self._write(encode_event(name, data), more=False)

    async def last_words(self, text: str) -> None:
        """A line on stderr of a stream that is about to be cut, if it has begun and not ended.

        A client that does not read it within a second is cut without.
        """
        if not self._open:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self.chunk("stderr", f"boxd: {text}\n".encode())

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        async with self._turn:
            await self._send({"type": "http.response.body", "body": body, "more_body": more})
