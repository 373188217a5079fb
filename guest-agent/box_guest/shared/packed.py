"""A compact receive buffer for a channel.

asyncssh stores each packet as an object. A window full of one-byte packets then takes a hundred
times the window in memory, and delivery takes a hundred times as long. This module stores packets
one after the other in one buffer, and joins consecutive packets of one stream.
"""

from __future__ import annotations

import struct

_HEAD = struct.Struct(">BI")
MOST = 128 * 1024
"""Maximum size of a joined piece, in bytes, the same as that of the tunnel's packets."""
COMPACT = 64 * 1024
"""Smallest number of delivered bytes that are removed from the front of the buffer at once."""


class Packed:
    """A FIFO queue of pairs (bytes, stream number; None is the main stream).

    It replaces a list in asyncssh and provides exactly the operations that asyncssh uses: `append`,
    `pop(0)` and truth.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._first = 0
        self.size = 0
        """Bytes that have not been taken yet."""
        self._last: int | None = None
        """Offset of the last piece if more may be joined to it."""

    def __bool__(self) -> bool:
        return self._first < len(self._buffer)

    @property
    def memory(self) -> int:
        """Bytes of memory that the buffer takes."""
        return len(self._buffer)

    def append(self, item: tuple[bytes, int | None]) -> None:
        """Append a packet, or join it to the last piece."""
        data, stream = item
        self.size += len(data)
        kind = 0 if stream is None else stream
        if self._last is not None:
            last, size = _HEAD.unpack_from(self._buffer, self._last)
            if last == kind and size + len(data) <= MOST:
                _HEAD.pack_into(self._buffer, self._last, kind, size + len(data))
                self._buffer += data
                return
        self._last = len(self._buffer)
        self._buffer += _HEAD.pack(kind, len(data))
        self._buffer += data

    def pop(self, index: int) -> tuple[bytes, int | None]:
        """Remove and return the oldest piece.

        Raises IndexError for any other index, or if empty.
        """
        if index or not self:
            raise IndexError(index)
        kind, size = _HEAD.unpack_from(self._buffer, self._first)
        start = self._first + _HEAD.size
        data = bytes(memoryview(self._buffer)[start : start + size])
        if self._last == self._first:
            self._last = None
        self._first = start + size
        self.size -= size
        if not self:
            self._buffer, self._first = bytearray(), 0
        elif self._first >= COMPACT and self._first * 2 >= len(self._buffer):
            del self._buffer[: self._first]
            if self._last is not None:
                self._last -= self._first
            self._first = 0
        return data, kind or None
