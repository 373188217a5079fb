"""The door for clients on standard input and output: one message per line."""

from __future__ import annotations

from typing import Protocol

MAX_LINE = 16 * 1024 * 1024
"""Bytes of one message, as by the other doors."""
LINGER_S = 5.0
"""For what is under way when the input ends, so that a pipe gets its answers."""


class Stdio(Protocol):
    """Input and output as bytes. Both ends wait for each other."""

    async def read(self) -> bytes:
        """At least one byte; b"" at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Sends output, when the client has read what was sent before."""
        ...


class Lines:
    """The messages of one client. One task reads, one writes."""

    def __init__(self, stdio: Stdio) -> None:
        self._stdio = stdio
        self._rest = bytearray()
        self._looked_at = 0
        self.too_long = False
        """A line was longer than a message may be: nothing after it can be read."""

    async def next(self) -> bytes | None:
        """The next line that is not blank; None at the end."""
        while True:
            end = self._rest.find(b"\n", self._looked_at)
            if end < 0:
                self._looked_at = len(self._rest)
                if not await self._more():
                    return None
                continue
            line = bytes(self._rest[:end])
            del self._rest[: end + 1]
            self._looked_at = 0
            if line.strip():
                return line

    async def _more(self) -> bool:
        data = await self._stdio.read()
        self._rest += data
        self.too_long = len(self._rest) > MAX_LINE
        return bool(data) and not self.too_long

    async def send(self, text: str) -> None:
        """One message."""
        await self._stdio.write(text.encode("ascii") + b"\n")
