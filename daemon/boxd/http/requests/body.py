"""Protocol adapter only. Reading a request body piece by piece."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from boxd.http.requests.errors import Refusal

if TYPE_CHECKING:
    from starlette.types import Receive


IDLE_S = 60.0
"""Seconds that a client may pause within a body that the service reads as a whole."""


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


class Body:
    """The body of one request; used by one task at a time.

    `idle`: seconds without a byte after which reading fails; None: no limit.
    """

    def __init__(self, receive: Receive, *, idle: float | None = None) -> None:
        self._receive = receive
        self.idle = idle
        self._pending = b""
        self._complete = False

    async def next(self) -> bytes | None:
        """Return the next bytes, never empty; None at the end. Raises ClientGone, Refusal (408)."""
        if self._pending:
            data, self._pending = self._pending, b""
            return data
        while not self._complete:
            try:
                async with asyncio.timeout(self.idle):
                    message = await self._receive()
            except TimeoutError:
                text = f"the request body paused for {self.idle:g} s; send the request again"
                raise Refusal(408, text, []) from None
            if message["type"] != "http.request":
                raise ClientGone
            self._complete = not message.get("more_body", False)
            if data := message.get("body", b""):
                return bytes(data)
        return None

    def put_back(self, data: bytes) -> None:
        """Make `data` the next bytes of the body; all earlier bytes have been read."""
        self._pending = data

    async def line(self, limit: int) -> bytes | None:
        """Return the bytes before the first LF, or before the end; None above `limit` bytes.

        The LF is consumed. The bytes after it stay in the body.
        """
        line = bytearray()
        while True:
            data = await self.next()
            if data is None:
                return bytes(line)
            head, newline, rest = data.partition(b"\n")
            line += head
            if len(line) > limit:
                return None
            if newline:
                self._pending = rest
                return bytes(line)

    async def whole(self, limit: int) -> bytes | None:
        """Return the whole body; None above `limit` bytes, with the rest unread."""
        body = bytearray()
        while (data := await self.next()) is not None:
            body += data
            if len(body) > limit:
                return None
        return bytes(body)
