"""Protocol adapter only. The output of a command as plain text, when the command writes it.

Both output streams are mixed, as at a terminal. A stream of text has no place for the exit code: a
client that needs it asks for events, or for the whole output with `stream=false`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.http.routes.commands.buffered import TEXT_HEADERS

if TYPE_CHECKING:
    from starlette.types import Send

_HEADERS = [*TEXT_HEADERS, (b"x-accel-buffering", b"no")]


class TextStream:
    """A response that is the output of a command. It has the methods of `EventStream`."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def start(self) -> None:
        """Send the status 200 and the headers."""
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})

    async def chunk(self, stream: str, data: bytes) -> None:
        """Send bytes of either stream; wait while the client does not read."""
        del stream
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def keepalive(self) -> None:
        """Return at once: a command that is silent sends nothing."""

    async def finish(self, name: bytes, data: bytes) -> None:
        """End the response."""
        del name, data
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def last_words(self, text: str) -> None:
        """Return at once: the client sees that the response is aborted."""
        del text
