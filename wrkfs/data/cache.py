"""Blocks in memory: least recently used pieces, within a bound.

Keys are immutable, so nothing here is ever stale. What was fetched before anybody asked for it is
counted until it has been read: read-ahead must not push out its own blocks. What is not read while
others read much more counts no longer: its reader has gone away.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeAlias

from wrkfs.types import SliceId

BlockId: TypeAlias = tuple[SliceId, int]
"""A slice and the index of one of its blocks."""


PATIENCE = 2
"""So many times the cache's size may be read by others before unread bytes are given up."""


@dataclass(slots=True)
class _Piece:
    """Bytes of a block from `first` on; unread until somebody has read up to `until`, if not 0."""

    first: int
    data: memoryview
    until: int

    @property
    def end(self) -> int:
        return self.first + len(self.data)


class BlockCache:
    """See the module. Critical sections: none; no method waits."""

    def __init__(self, limit: int) -> None:
        """Holds at most `limit` bytes."""
        self.limit = limit
        self.size = 0
        """Bytes held."""
        self.unread = 0
        """Bytes among them that were fetched ahead and not read yet."""
        self._blocks: OrderedDict[BlockId, list[_Piece]] = OrderedDict()
        self._waiting: OrderedDict[BlockId, int] = OrderedDict()
        """Blocks with unread bytes: what `_read` was when they were touched last."""
        self._read = 0

    def find(self, key: BlockId, start: int, end: int) -> memoryview | None:
        """The bytes [start, end) of a block, when one cached piece holds them all."""
        for piece in self._blocks.get(key, ()):
            if piece.first <= start and end <= piece.end:
                done = 0 < piece.until <= end
                if done:
                    self._count_read(key, piece)
                elif piece.until:
                    self._waits(key)
                # What a sequential reader has done with goes first, unless it is read again.
                self._blocks.move_to_end(key, last=not done)
                return piece.data[start - piece.first : end - piece.first]
        return None

    def note_read(self, size: int) -> None:
        """Somebody has read `size` bytes, from here or past it."""
        self._read += size
        while self._waiting:
            key = next(iter(self._waiting))
            if self._read - self._waiting[key] <= PATIENCE * self.limit:
                return
            for piece in self._blocks[key]:
                self._count_read(key, piece)
            self._waiting.pop(key, None)
            self._blocks.move_to_end(key, last=False)

    def holds(self, key: BlockId, start: int, end: int) -> bool:
        """Whether `find` would give something; does not count as reading."""
        return any(piece.first <= start and end <= piece.end for piece in self._blocks.get(key, ()))

    def add(self, key: BlockId, first: int, data: memoryview, *, until: int = 0) -> None:
        """Keeps a piece that starts at `first`; the oldest blocks make room for it.

        It counts as unread until a read reaches the byte before `until`.
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
            self._waits(key)
        while self.size > self.limit and self._blocks:
            oldest, gone = self._blocks.popitem(last=False)
            for piece in gone:
                self._forget(oldest, piece)

    def _waits(self, key: BlockId) -> None:
        self._waiting[key] = self._read
        self._waiting.move_to_end(key)

    def _count_read(self, key: BlockId, piece: _Piece) -> None:
        if piece.until:
            piece.until = 0
            self.unread -= len(piece.data)
            self._waiting.pop(key, None)

    def _forget(self, key: BlockId, piece: _Piece) -> None:
        self._count_read(key, piece)
        self.size -= len(piece.data)
