"""Protocol adapter only. Server-sent events: one ASGI message for each event."""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Send

MAX_RAW = 64 * 1024
"""Maximum size of the data in one event, in bytes before base64."""
KEEPALIVE_S = 15.0
LAST_WORDS_S = 1.0
"""Seconds that the final text of an aborted stream waits for a client that does not read."""
_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"x-accel-buffering", b"no"),
]


def encode_event(name: bytes, data: bytes, number: int | None = None) -> bytes:
    """Return one event whose data is a single line. `number`: its id; None: it has none."""
    line = b"" if number is None else b"id: %d\n" % number
    return b"%bevent: %b\ndata: %b\n\n" % (line, name, data)


def _encoded(name: bytes, data: bytes, number: int | None = None) -> bytes:
    """Return an event with base64 data.

    This is a separate function, so that a waiting sender holds only the encoded bytes.
    """
    return encode_event(name, binascii.b2a_base64(data, newline=False), number)


class EventStream:
    """One response that consists of events.

    Critical section: `_turn` is held while one message is sent, so messages never interleave.
    `_open` is set once, with the status 200, and cleared once, before the last event is sent.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._turn = asyncio.Lock()
        self._open = False

    async def start(self) -> None:
        """Send the status 200 and the headers."""
        self._open = True
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})

    async def head(self) -> None:
        """Answer a HEAD request: the headers, and no event."""
        await self.start()
        self._open = False
        await self._write(b"", more=False)

    async def chunk(self, stream: str, data: bytes) -> None:
        """Send bytes of a stream as base64 events; wait while the client does not read."""
        name = stream.encode()
        for start in range(0, len(data), MAX_RAW):
            await self._write(_encoded(name, data[start : start + MAX_RAW]))

    async def chunk_before(self, stream: str, data: bytes, end: int) -> None:
        """Send bytes of a stream as one base64 event. Its id is `end`, the offset after them."""
        await self._write(_encoded(stream.encode(), data, end))

    async def event(self, name: str, message: Mapping[str, object], end: int | None = None) -> None:
        """Send an event with JSON data. `end`: its id."""
        await self._write(encode_event(name.encode(), json.dumps(message).encode(), end))

    async def keepalive(self) -> None:
        """Send a comment every 15 s, regardless of other events, until cancelled."""
        while True:
            await asyncio.sleep(KEEPALIVE_S)
            await self._write(b": keepalive\n\n")

    async def finish(self, name: bytes, data: bytes) -> None:
        """Send the last event and end the response."""
        self._open = False
        await self._write(encode_event(name, data), more=False)

    async def last_words(self, text: str) -> None:
        """Send a line as stderr before the stream is aborted, if the stream is open.

        If the client does not read the line within a second, the method gives up.
        """
        if not self._open:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self.chunk("stderr", f"boxd: {text}\n".encode())

    async def failed(self, text: str) -> None:
        """Send an event `failed` before the stream is aborted, like `last_words`."""
        if not self._open:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self.event("failed", {"error": text})

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        async with self._turn:
            await self._send({"type": "http.response.body", "body": body, "more_body": more})
