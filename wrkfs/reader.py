"""Reading: memory, then the disk cache, then ranged GETs; sums checked; sequential read-ahead.

What may be in memory: the cache's bound, and the fetches in flight. Blocks are fetched whole only
for sequential readers, and only while what was fetched ahead and not read yet stays below a share
of the cache: with more readers than it can serve so, each fetches just what it is asked for.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wrkfs.data.cache import BlockCache
from wrkfs.data.checksums import SUM_SIZE, check
from wrkfs.errors import Corrupt
from wrkfs.layout import BLOCK_SIZE, CHECKSUM_UNIT, MIB, block_key

if TYPE_CHECKING:
    from wrkfs.data.cache import BlockId
    from wrkfs.data.diskcache import DiskCache, DiskUsage
    from wrkfs.data.interface import BlockStore
    from wrkfs.layout import FileLayout, Segment
    from wrkfs.types import BytesLike, SliceRef

FETCHES = 16
"""GETs in flight of one Filesystem."""
PREFETCHES = 12
"""Of these, whole blocks: the others are left to who waits for a few bytes."""
AHEAD_MIN = 4 * MIB
AHEAD_MAX = 64 * MIB
"""Read-ahead window: doubles from the first to the second while reading stays sequential."""
MAX_LOOKED = 256
"""Pieces that one read looks at to find what to fetch ahead."""
AHEAD_SHARE = 0.75
"""Share of the cache that may be taken by what is fetched ahead and not read yet."""
REORDER = 4 * MIB
"""How far the kernel's own read-ahead may bring sequential requests out of order."""


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """Bytes of blocks in memory, their bound, and the disk cache, if there is one."""

    memory: int
    limit: int
    disk: DiskUsage | None


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
    several readers of one block wait for one GET. `_coming` is what they will add to the cache's
    unread bytes; it changes in the step in which a fetch enters or leaves.
    """

    def __init__(
        self,
        blocks: BlockStore,
        prefix: str,
        cache_size: int,
        disk: DiskCache | None = None,
    ) -> None:
        self._blocks = blocks
        self._prefix = prefix
        self._cache = BlockCache(cache_size)
        self._disk = disk
        self._fetching: dict[BlockId, asyncio.Task[memoryview]] = {}
        self._coming = 0
        self._slots = asyncio.Semaphore(FETCHES)

    @property
    def usage(self) -> CacheUsage:
        """What the caches hold."""
        disk = None if self._disk is None else self._disk.usage
        return CacheUsage(self._cache.size, self._cache.limit, disk)

    async def read(self, layout: FileLayout, start: int, end: int, ahead: int) -> BytesLike:
        """The committed bytes [start, end), holes as zeros; starts `ahead` bytes of prefetch.

        Raises Corrupt when the store's bytes are not the written ones, Unavailable.
        """
        self._cache.note_read(end - start)
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
        if self._disk is not None:
            await self._disk.close()

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
        if task is None and whole and self._has_room():
            task = self._start(ref, index)
        if task is not None:
            data = await asyncio.shield(task)
            # Counts as read where the cache has it still.
            self._cache.find(key, low, high)
            return data[low:high]
        first = low - low % CHECKSUM_UNIT
        last = min(-(-high // CHECKSUM_UNIT) * CHECKSUM_UNIT, _block_size(ref, index))
        data = await self._load(ref, index, first, last)
        # A sequential reader does not come back for units that it has read wholly.
        if not whole or last - first > high - low:
            self._cache.add(key, first, data)
        return data[low - first : high - first]

    def _prefetch(self, layout: FileLayout, end: int, ahead: int) -> None:
        """Starts fetching what comes next; looks at few pieces of a file in many."""
        looked = 0
        for start in range(end, end + ahead, BLOCK_SIZE):
            for segment in layout.between(start, min(start + BLOCK_SIZE, end + ahead)):
                for piece in _block_pieces(segment):
                    if not self._has_room():
                        return
                    self._prefetch_piece(*piece)
                    looked += 1
            if looked >= MAX_LOOKED:
                return

    def _prefetch_piece(self, segment: Segment, index: int, low: int, high: int) -> None:
        ref = segment.ref
        key = (ref.slice_id, index)
        known = key in self._fetching or self._cache.holds(key, low, high)
        if ref.inline is None and not known:
            self._start(ref, index)

    def _has_room(self) -> bool:
        """Whether one more whole block may be fetched."""
        coming = self._cache.unread + self._coming + BLOCK_SIZE
        return len(self._fetching) < PREFETCHES and coming <= self._cache.limit * AHEAD_SHARE

    def _start(self, ref: SliceRef, index: int) -> asyncio.Task[memoryview]:
        key, size = (ref.slice_id, index), _block_size(ref, index)
        task = asyncio.create_task(self._load(ref, index, 0, size))
        self._fetching[key] = task
        self._coming += size
        until = min(size, ref.off + ref.length - index * BLOCK_SIZE)
        task.add_done_callback(lambda done: self._fetched(key, size, until, done))
        return task

    def _fetched(self, key: BlockId, size: int, until: int, task: asyncio.Task[memoryview]) -> None:
        del self._fetching[key]
        self._coming -= size
        # Asking for the error marks it as seen: who waits for the block gets it from the task, and
        # a read that needs the block of a failed prefetch asks the store itself.
        if not task.cancelled() and task.exception() is None:
            self._cache.add(key, 0, task.result(), until=until)

    async def _sound(self, key: str, first: int, length: int, sums: bytes) -> memoryview:
        """Bytes of the store that match their sums; asked for once more if they do not."""
        data = await self._blocks.get(key, first, length)
        try:
            check(data, sums, key)
        except Corrupt:
            # Perhaps it was only the way here that changed them.
            data = await self._blocks.get(key, first, length)
            check(data, sums, key)
        return data

    async def _load(self, ref: SliceRef, index: int, first: int, last: int) -> memoryview:
        """Whole units [first, last) of a block, checked."""
        key = block_key(self._prefix, ref.slice_id, index)
        unit = (index * BLOCK_SIZE + first) // CHECKSUM_UNIT
        units = -(-(last - first) // CHECKSUM_UNIT)
        sums = ref.checksums[SUM_SIZE * unit : SUM_SIZE * (unit + units)]
        async with self._slots:
            data = await self._from_disk((ref.slice_id, index), first, last, sums)
            if data is None:
                data = await self._sound(key, first, last - first, sums)
                if self._disk is not None:
                    self._disk.put((ref.slice_id, index), first, data)
        return data

    async def _from_disk(
        self, block: BlockId, first: int, last: int, sums: bytes
    ) -> memoryview | None:
        """What the disk cache has, if it is what was written."""
        if self._disk is None:
            return None
        data = await self._disk.get(block, first, last)
        if data is not None:
            try:
                check(data, sums, "the disk cache")
            except Corrupt:
                self._disk.drop(block)
                return None
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
