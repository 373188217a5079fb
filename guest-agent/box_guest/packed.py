"""What a channel has received and nobody takes yet, at the size of its bytes.

asyncssh keeps each packet as an object, so that a window full of packets with one byte each takes a
hundred times the window, and as many times as long to hand on. Here packets lie one after the other
in one buffer, those of one stream joined.
"""

from __future__ import annotations

import struct

_HEAD = struct.Struct(">BI")
MOST = 128 * 1024
"""Bytes of one piece that is handed on, as of the largest packet of the tunnel."""
COMPACT = 64 * 1024
"""Bytes that were handed on and are still kept, at least, before the rest is moved."""


class Packed:
    """First in, first out: pairs of bytes and the number of their stream (None: the main one).

    Stands where asyncssh has a list and knows what asyncssh does with it: `append`, `pop(0)` and
    whether there is anything.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._first = 0
        self.size = 0
        """Bytes that nobody took yet."""
        self._last: int | None = None
        """Where the last piece begins, which more may be joined to."""

    def __bool__(self) -> bool:
        return self._first < len(self._buffer)

    @property
    def memory(self) -> int:
        """Bytes that it takes."""
        return len(self._buffer)

    def append(self, item: tuple[bytes, int | None]) -> None:
        """The newest packet."""
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
        """The oldest piece; there is no other to be had. Raises IndexError when there is none."""
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
