"""A program in a box that answers from a script."""

from __future__ import annotations

from collections import deque


class Scripted:
    """A stream that gives these pieces, and then its end, or is cut."""

    def __init__(self, pieces: list[bytes], *, cut: bool = False) -> None:
        self._pieces = deque(piece for piece in pieces if piece)
        self._cut = cut
        self.closed = False
        self.written = b""

    async def read(self) -> bytes:
        """See ByteStream."""
        if self._pieces:
            return self._pieces.popleft()
        if self._cut:
            raise ConnectionResetError
        return b""

    async def write(self, data: bytes) -> None:
        """See ByteStream."""
        self.written += data

    def write_eof(self) -> None:
        """See ByteStream."""

    def close(self) -> None:
        """See ByteStream."""
        self.closed = True
