"""A program in a box with scripted answers."""

from __future__ import annotations

from collections import deque


class Scripted:
    """Implements `ByteStream`: yields scripted pieces, then ends, or is cut."""

    def __init__(self, pieces: list[bytes], *, cut: bool = False) -> None:
        self._pieces = deque(piece for piece in pieces if piece)
        self._cut = cut
        self.closed = False
        self.written = b""

    async def read(self) -> bytes:
        if self._pieces:
            return self._pieces.popleft()
        if self._cut:
            raise ConnectionResetError
        return b""

    async def write(self, data: bytes) -> None:
        self.written += data

    def write_eof(self) -> None:
        """Do nothing: the script ignores the end of input."""

    def close(self) -> None:
        self.closed = True
