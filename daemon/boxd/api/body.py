"""Protocol adapter only. Reading a request body piece by piece."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Receive


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


class Body:
    """The body of one request; used by one task at a time."""

    def __init__(self, receive: Receive, *, idle: float | None = None) -> None:
        """`idle`: seconds without a byte after which the client counts as gone; None: never."""
        self._receive = receive
        self._idle = idle
        self._pending = b""
        self._complete = False

    async def next(self) -> bytes | None:
        """The next bytes, never empty; None at the end. Raises ClientGone."""
        if self._pending:
            data, self._pending = self._pending, b""
            return data
        while not self._complete:
            try:
                async with asyncio.timeout(self._idle):
                    message = await self._receive()
            except TimeoutError:
                raise ClientGone from None
            if message["type"] != "http.request":
                raise ClientGone
            self._complete = not message.get("more_body", False)
            if data := message.get("body", b""):
                return bytes(data)
        return None

    async def line(self, limit: int) -> bytes | None:
        """Bytes up to the first LF (which is dropped) or the end; None above `limit` bytes."""
        found = b""
        while True:
            data = await self.next()
            if data is None:
                return found
            head, newline, rest = data.partition(b"\n")
            found += head
            if len(found) > limit:
                return None
            if newline:
                self._pending = rest
                return found

    async def whole(self, limit: int) -> bytes | None:
        """All of it; None above `limit` bytes, with the rest unread."""
        found = bytearray()
        while (data := await self.next()) is not None:
            found += data
            if len(found) > limit:
                return None
        return bytes(found)
