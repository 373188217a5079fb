"""Reading: ranged GETs checked by checksum, a block cache, sequential read-ahead."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

from wrkfs.data.checksums import SUM_SIZE, check
from wrkfs.layout import BLOCK_SIZE, CHECKSUM_UNIT, MIB, block_key

if TYPE_CHECKING:
    from wrkfs.data.interface import BlockStore
    from wrkfs.layout import FileLayout, Segment
    from wrkfs.types import BytesLike, SliceId, SliceRef

CACHE_SIZE = 64 * MIB
"""Bytes of blocks that one Filesystem keeps in memory."""
FETCHES = 16
"""GETs in flight of one Filesystem."""
AHEAD_MIN = 4 * MIB
AHEAD_MAX = 16 * MIB
"""Read-ahead window: doubles from the first to the second while reading stays sequential."""
REORDER = 4 * MIB
"""How far the kernel's own read-ahead may bring sequential requests out of order."""


class BlockCache:
    """Least recently used pieces of blocks. Keys are immutable, so nothing is ever stale."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._blocks: OrderedDict[tuple[SliceId, int], list[tuple[int, memoryview]]] = OrderedDict()

    def find(self, key: tuple[SliceId, int], start: int, end: int) -> memoryview | None:
        """The bytes [start, end) of a block, when one cached piece holds them all."""
        pieces = self._blocks.get(key)
        if pieces is None:
            return None
        for first, data in pieces:
            if first <= start and end <= first + len(data):
                self._blocks.move_to_end(key)
                return data[start - first : end - first]
        return None

    def add(self, key: tuple[SliceId, int], first: int, data: memoryview) -> None:
        """Keeps a piece that starts at `first`; the oldest blocks make room for it."""
        whole = first == 0 and len(data) == BLOCK_SIZE
        if whole:
            self._size -= sum(len(old) for _, old in self._blocks.pop(key, []))
        self._blocks.setdefault(key, []).append((first, data))
        self._blocks.move_to_end(key)
        self._size += len(data)
        while self._size > self._limit and self._blocks:
            _, pieces = self._blocks.popitem(last=False)
            self._size -= sum(len(old) for _, old in pieces)


class ReadAhead:
    """How sequential one handle reads."""

    __slots__ = ("_expected", "_window")

    def __init__(self) -> None:
        self._expected = 0
        self._window = 0

    def plan(self, offset: int, size: int) -> int:
        """Bytes to fetch beyond this read; 0 while the reader jumps or has just begun."""
        end = offset + size
        if offset == 0 and self._expected == 0:
            self._window = 0
        elif abs(offset - self._expected) <= REORDER and self._expected:
            self._window = min(AHEAD_MAX, max(AHEAD_MIN, self._window * 2))
        else:
            self._window = 0
            self._expected = end
            return 0
        self._expected = max(self._expected, end)
        return self._window


class BlockReader:
    """Fetches what layouts show, for all files of one Filesystem.

    Critical section: none across an await; whole blocks under way are in `_fetching`, so that
    several readers of one block wait for one GET.
    """

    def __init__(self, blocks: BlockStore, prefix: str, cache_size: int = CACHE_SIZE) -> None:
        self._blocks = blocks
        self._prefix = prefix
        self._cache = BlockCache(cache_size)
        self._fetching: dict[tuple[SliceId, int], asyncio.Task[memoryview]] = {}
        self._slots = asyncio.Semaphore(FETCHES)

    async def read(self, layout: FileLayout, start: int, end: int, ahead: int) -> BytesLike:
        """The committed bytes [start, end), holes as zeros; starts `ahead` bytes of prefetch.

        Raises Corrupt when the store's bytes are not the written ones, Unavailable.
        """
        segments = layout.between(start, end)
        wanted = [piece for segment in segments for piece in _block_pieces(segment)]
        found: list[BytesLike] = [b""] * len(wanted)
        missing = []
        for number, (segment, index, low, high) in enumerate(wanted):
            ready = self._at_hand(segment.ref, index, low, high)
            if ready is None:
                missing.append(number)
            else:
                found[number] = ready
        if missing:
            fetches = [asyncio.create_task(self._fetch(*wanted[n], ahead > 0)) for n in missing]
            self._prefetch(layout, end, ahead)
            for number, data in zip(missing, await _all(fetches), strict=True):
                found[number] = data
        else:
            self._prefetch(layout, end, ahead)
        return _assemble(start, end, wanted, found)

    async def close(self) -> None:
        """Ends prefetches."""
        tasks = list(self._fetching.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _at_hand(self, ref: SliceRef, index: int, low: int, high: int) -> memoryview | None:
        if ref.inline is not None:
            return memoryview(ref.inline)[low:high]
        return self._cache.find((ref.slice_id, index), low, high)

    async def _fetch(
        self, segment: Segment, index: int, low: int, high: int, whole: bool
    ) -> memoryview:
        """Bytes [low, high) of one block: of the whole block if it is being, or to be, fetched."""
        ref = segment.ref
        key = (ref.slice_id, index)
        task = self._fetching.get(key)
        if task is None and whole:
            task = self._start(ref, index)
        if task is not None:
            return (await asyncio.shield(task))[low:high]
        first = low - low % CHECKSUM_UNIT
        last = min(-(-high // CHECKSUM_UNIT) * CHECKSUM_UNIT, _block_size(ref, index))
        data = await self._load(ref, index, first, last)
        return data[low - first : high - first]

    def _prefetch(self, layout: FileLayout, end: int, ahead: int) -> None:
        for segment in layout.between(end, end + ahead):
            for piece in _block_pieces(segment):
                ref, index = piece[0].ref, piece[1]
                key = (ref.slice_id, index)
                if len(self._fetching) >= FETCHES:
                    return
                if key not in self._fetching and self._at_hand(ref, *piece[1:]) is None:
                    self._start(ref, index)

    def _start(self, ref: SliceRef, index: int) -> asyncio.Task[memoryview]:
        key = (ref.slice_id, index)
        task = asyncio.create_task(self._load(ref, index, 0, _block_size(ref, index)))
        self._fetching[key] = task
        task.add_done_callback(lambda done: self._fetched(key, done))
        return task

    def _fetched(self, key: tuple[SliceId, int], task: asyncio.Task[memoryview]) -> None:
        del self._fetching[key]
        if not task.cancelled():
            # Marks the error as seen: who waits for the block gets it from the task, and a read
            # that needs the block of a failed prefetch asks the store itself.
            task.exception()

    async def _load(self, ref: SliceRef, index: int, first: int, last: int) -> memoryview:
        """Whole units [first, last) of a block, checked and cached."""
        key = block_key(self._prefix, ref.slice_id, index)
        async with self._slots:
            data = await self._blocks.get(key, first, last - first)
        unit = (index * BLOCK_SIZE + first) // CHECKSUM_UNIT
        units = -(-(last - first) // CHECKSUM_UNIT)
        check(data, ref.checksums[SUM_SIZE * unit : SUM_SIZE * (unit + units)], key)
        self._cache.add((ref.slice_id, index), first, data)
        return data


def _block_size(ref: SliceRef, index: int) -> int:
    return min(BLOCK_SIZE, ref.size - index * BLOCK_SIZE)


def _block_pieces(segment: Segment) -> list[tuple[Segment, int, int, int]]:
    """A segment cut at block borders: (the piece's segment, block index, low, high in the block).

    An inline slice is one piece of block 0.
    """
    pieces = []
    start = segment.start
    while start < segment.end:
        at = segment.slice_off + start - segment.start
        index, low = divmod(at, BLOCK_SIZE)
        size = min(segment.end - start, BLOCK_SIZE - low)
        piece = type(segment)(start, start + size, segment.ref)
        pieces.append((piece, index, low, low + size))
        start += size
    return pieces


async def _all(fetches: list[asyncio.Task[memoryview]]) -> list[memoryview]:
    """All results, or the first error after all have ended."""
    outcomes = await asyncio.gather(*fetches, return_exceptions=True)
    results = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


def _assemble(
    start: int,
    end: int,
    wanted: list[tuple[Segment, int, int, int]],
    found: list[BytesLike],
) -> BytesLike:
    """One buffer of the pieces and the holes between them; no copy when it is one piece."""
    if len(wanted) == 1 and len(found[0]) == end - start:
        return found[0]
    parts: list[BytesLike] = []
    at = start
    for (segment, _, _, _), data in zip(wanted, found, strict=True):
        if segment.start > at:
            parts.append(bytes(segment.start - at))
        parts.append(data)
        at = segment.end
    if at < end:
        parts.append(bytes(end - at))
    return b"".join(parts)
