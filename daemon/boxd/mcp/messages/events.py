"""HTTP responses of the MCP service: JSON, an empty body, or server-sent events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping, Sequence

    Message = MutableMapping[str, Any]
    Send = Callable[[Message], Awaitable[None]]
    Header = tuple[bytes, bytes]

_EVENT_HEADERS = ((b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no"))


async def send_json(
    send: Send, status: int, text: str, extra_headers: Sequence[Header] = ()
) -> None:
    """Send a complete response with one JSON document."""
    body = text.encode("ascii")
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        *extra_headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_empty(send: Send, status: int) -> None:
    """Send a complete response without a body."""
    headers = [] if status == 204 else [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


class EventStream:
    """A response of server-sent events. It starts with the first event, or with `start`."""

    def __init__(self, send: Send, extra_headers: Sequence[Header] = ()) -> None:
        self.started = False
        self._send = send
        self._extra_headers = extra_headers

    async def start(self) -> None:
        """Send status 200 and the headers, once."""
        if not self.started:
            self.started = True
            headers = [*_EVENT_HEADERS, *self._extra_headers]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def send_event(self, text: str, event_id: str, *, last: bool = False) -> None:
        """Send one message as an event. `last` ends the response."""
        lines = f"event: message\nid: {event_id}\ndata: {text}\n\n"
        await self._write(lines.encode("ascii"), more=not last)

    async def send_priming_event(self, event_id: str, retry_ms: int) -> None:
        """Send an event without a message: its id, and when to reconnect after a lost stream."""
        lines = f"id: {event_id}\nretry: {retry_ms}\ndata:\n\n"
        await self._write(lines.encode("ascii"), more=True)

    async def send_id(self, event_id: str) -> None:
        """Send an id alone. Clients that expect a message in each event do not see an event."""
        await self._write(f"id: {event_id}\n\n".encode("ascii"), more=True)

    async def send_keepalive(self) -> None:
        """Send a comment, so that proxies keep the connection open."""
        await self._write(b": keepalive\n\n", more=True)

    async def finish(self) -> None:
        """End the response."""
        await self._write(b"", more=False)

    async def _write(self, body: bytes, *, more: bool) -> None:
        await self.start()
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
