"""HTTP answers of the plane: JSON, nothing, or server-sent events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping, Sequence

    Message = MutableMapping[str, Any]
    Send = Callable[[Message], Awaitable[None]]
    Header = tuple[bytes, bytes]

_EVENTS = ((b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no"))


async def send_json(send: Send, status: int, text: str, more: Sequence[Header] = ()) -> None:
    """A whole answer, of one JSON document."""
    body = text.encode("ascii")
    lines = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})


async def send_empty(send: Send, status: int) -> None:
    """An answer without a body."""
    lines = [] if status == 204 else [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": b""})


class Events:
    """An answer that goes on. It begins with the first event, or by `begin`."""

    def __init__(self, send: Send, more: Sequence[Header] = ()) -> None:
        self.begun = False
        self._send = send
        self._more = more

    async def begin(self) -> None:
        """Sends the 200, once."""
        if not self.begun:
            self.begun = True
            lines = [*_EVENTS, *self._more]
            await self._send({"type": "http.response.start", "status": 200, "headers": lines})

    async def event(self, text: str, number: str, *, last: bool = False) -> None:
        """One message, and the id of this event; with `last` the answer is complete."""
        lines = f"event: message\nid: {number}\ndata: {text}\n\n"
        await self._write(lines.encode("ascii"), more=not last)

    async def prime(self, number: str, retry_ms: int) -> None:
        """An event without a message: its id, and when a client that lost the stream returns."""
        lines = f"id: {number}\nretry: {retry_ms}\ndata:\n\n"
        await self._write(lines.encode("ascii"), more=True)

    async def position(self, number: str) -> None:
        """An id alone, which is no event for clients that expect a message in each."""
        await self._write(f"id: {number}\n\n".encode("ascii"), more=True)

    async def keepalive(self) -> None:
        """A comment, which proxies see."""
        await self._write(b": keepalive\n\n", more=True)

    async def finish(self) -> None:
        """The end, after no message."""
        await self._write(b"", more=False)

    async def _write(self, body: bytes, *, more: bool) -> None:
        await self.begin()
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
