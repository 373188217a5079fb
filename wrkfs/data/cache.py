"""Blocks in memory: an LRU cache of pieces, with a maximum size.

Blocks are immutable, so a cached piece is never stale. The cache counts the bytes that read-ahead
fetched and no reader has read yet, because read-ahead must not evict its own blocks. If other
readers read much more in the meantime, these bytes no longer count: their reader has stopped.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeAlias

from wrkfs.types import SliceId

BlockId: TypeAlias = tuple[SliceId, int]
"""A slice and the index of one of its blocks."""


PATIENCE = 2
"""Unread bytes no longer count after reads of this many times the cache's size."""


@dataclass(slots=True)
class _Piece:
    """Bytes of a block from offset `first`. `until` is 0, or the end of the bytes to be read."""

    first: int
    data: memoryview
    until: int

    @property
    def end(self) -> int:
        return self.first + len(self.data)


class BlockCache:
    """The cache (see above). Critical sections: none, no method waits."""

    def __init__(self, limit: int) -> None:
        """`limit` is the maximum size in bytes."""
        self.limit = limit
        self.size = 0
        """Number of cached bytes."""
        self.unread = 0
        """Number of cached bytes that read-ahead fetched and no reader has read yet."""
        self._blocks: OrderedDict[BlockId, list[_Piece]] = OrderedDict()
        self._unread_blocks: OrderedDict[BlockId, int] = OrderedDict()
        """Blocks with unread bytes, and the value of `_total_read` at their last access."""
        self._total_read = 0

    def find(self, key: BlockId, start: int, end: int) -> memoryview | None:
        """Return the bytes [start, end) of a block if one cached piece contains them."""
        for piece in self._blocks.get(key, ()):
            if piece.first <= start and end <= piece.end:
                read_to_end = 0 < piece.until <= end
                if read_to_end:
                    self._mark_read(key, piece)
                elif piece.until:
                    self._mark_unread(key)
                # A block that a sequential reader has finished is the next one to evict.
                self._blocks.move_to_end(key, last=not read_to_end)
                return piece.data[start - piece.first : end - piece.first]
        return None

    def note_read(self, size: int) -> None:
        """Count a read of `size` bytes, cached or not."""
        self._total_read += size
        while self._unread_blocks:
            key = next(iter(self._unread_blocks))
            if self._total_read - self._unread_blocks[key] <= PATIENCE * self.limit:
                return
            for piece in self._blocks[key]:
                self._mark_read(key, piece)
            self._unread_blocks.pop(key, None)
            self._blocks.move_to_end(key, last=False)

    def contains(self, key: BlockId, start: int, end: int) -> bool:
        """Return True if `find` would return bytes. Does not count as a read."""
        return any(piece.first <= start and end <= piece.end for piece in self._blocks.get(key, ()))

    def add(self, key: BlockId, first: int, data: memoryview, *, until: int = 0) -> None:
        """Cache a piece that begins at offset `first`, and evict the oldest blocks.

        With `until`, the piece counts as unread until a read reaches that offset.
        """
        new = _Piece(first, data, until)
        pieces = self._blocks.setdefault(key, [])
        for piece in list(pieces):
            if new.first <= piece.first and piece.end <= new.end:
                pieces.remove(piece)
                self._forget(key, piece)
        pieces.append(new)
        self._blocks.move_to_end(key)
        self.size += len(data)
        if until:
            self.unread += len(data)
            self._mark_unread(key)
        while self.size > self.limit and self._blocks:
            oldest, pieces = self._blocks.popitem(last=False)
            for piece in pieces:
                self._forget(oldest, piece)

    def _mark_unread(self, key: BlockId) -> None:
        self._unread_blocks[key] = self._total_read
        self._unread_blocks.move_to_end(key)

    def _mark_read(self, key: BlockId, piece: _Piece) -> None:
        if piece.until:
            piece.until = 0
            self.unread -= len(piece.data)
            self._unread_blocks.pop(key, None)

    def _forget(self, key: BlockId, piece: _Piece) -> None:
        self._mark_read(key, piece)
        self.size -= len(piece.data)
