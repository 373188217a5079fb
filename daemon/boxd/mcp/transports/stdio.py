"""The transport for clients on standard input and output: one message per line."""

from __future__ import annotations

from typing import Protocol

MAX_LINE = 16 * 1024 * 1024
"""Maximum size of one message, in bytes. The other transports have the same limit."""
LINGER_S = 5.0
"""Time to answer open requests after the input ends, so that a pipe receives its answers."""


class Stdio(Protocol):
    """Input and output as bytes. Each side waits for the other one (back-pressure)."""

    async def read(self) -> bytes:
        """Wait for and return at least one byte; b"" at the end of the input."""
        ...

    async def write(self, data: bytes) -> None:
        """Send output after the client has read the earlier output."""
        ...


class StdioClient:
    """The messages of one client. One task reads, and one task writes."""

    def __init__(self, stdio: Stdio) -> None:
        self._stdio = stdio
        self._buffer = bytearray()
        self._searched = 0
        """Bytes of the buffer that hold no line end."""
        self.too_long = False
        """Whether a line was longer than MAX_LINE. Nothing after it can be read."""

    async def next(self) -> bytes | None:
        """Wait for and return the next line that is not blank; None at the end."""
        while True:
            end = self._buffer.find(b"\n", self._searched)
            if end < 0:
                self._searched = len(self._buffer)
                if not await self._read_more():
                    return None
                continue
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._searched = 0
            if line.strip():
                return line

    async def _read_more(self) -> bool:
        data = await self._stdio.read()
        self._buffer += data
        self.too_long = len(self._buffer) > MAX_LINE
        return bool(data) and not self.too_long

    async def send(self, text: str) -> None:
        """Send one message."""
        await self._stdio.write(text.encode("ascii") + b"\n")
