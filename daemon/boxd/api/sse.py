"""Protocol adapter only. Server-sent events, written by hand: one ASGI message per event."""

from __future__ import annotations

import asyncio
import binascii
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Send

MAX_RAW = 64 * 1024
"""Bytes before base64 in one event."""
KEEPALIVE_S = 15.0
_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"x-accel-buffering", b"no"),
]


def encode_event(name: bytes, data: bytes) -> bytes:
    """One event whose data is a single line."""
    return b"event: %b\ndata: %b\n\n" % (name, data)


class EventStream:
    """One response. Messages never mix: each is sent whole under `_turn`."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Sends the 200."""
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})

    async def chunk(self, stream: str, data: bytes) -> None:
        """Bytes of a stream as base64 events; waits while the client does not read."""
        name = stream.encode()
        for start in range(0, len(data), MAX_RAW):
            coded = binascii.b2a_base64(data[start : start + MAX_RAW], newline=False)
            await self._write(encode_event(name, coded))

    async def keepalive(self) -> None:
        """Sends a comment every 15 s, whatever else flows, until it is cancelled."""
        while True:
            await asyncio.sleep(KEEPALIVE_S)
            await self._write(b": keepalive\n\n")

    async def finish(self, name: bytes, data: bytes) -> None:
        """The last event and the end of the response."""
        await self._write(encode_event(name, data), more=False)

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        async with self._turn:
            await self._send({"type": "http.response.body", "body": body, "more_body": more})
