"""Protocol adapter only. Reading a request body piece by piece."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from boxd.api.errors import Refusal

if TYPE_CHECKING:
    from starlette.types import Receive


IDLE_S = 60.0
"""How long a client may pause within what is read as a whole before it is answered."""


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


class Body:
    """The body of one request; used by one task at a time.

    `idle`: seconds without a byte after which the request is given up; None: never.
    """

    def __init__(self, receive: Receive, *, idle: float | None = None) -> None:
        self._receive = receive
        self.idle = idle
        self._pending = b""
        self._complete = False

    async def next(self) -> bytes | None:
        """The next bytes, never empty; None at the end. Raises ClientGone, Refusal (408)."""
        if self._pending:
            data, self._pending = self._pending, b""
            return data
        while not self._complete:
            try:
                async with asyncio.timeout(self.idle):
                    message = await self._receive()
            except TimeoutError:
                text = f"the request stopped for {self.idle:g} s within its body; send it again"
                raise Refusal(408, text, []) from None
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
