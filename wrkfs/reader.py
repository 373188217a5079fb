"""Reads of blocks: memory, then the disk cache, then ranged GETs, with checksums and read-ahead.

The memory limit covers the cache, but not blocks in flight. Whole blocks are fetched only for
sequential readers, and only while unread bytes use less than a share of the cache. With more
readers than that, each one fetches exactly the bytes of its request.
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
"""Maximum number of concurrent GETs of one Filesystem."""
PREFETCHES = 12
"""Maximum number of concurrent GETs of whole blocks. The others are for small reads."""
AHEAD_MIN = 4 * MIB
AHEAD_MAX = 64 * MIB
"""Read-ahead window: doubles from the minimum to the maximum while reads are sequential."""
MAX_SCANNED = 256
"""Maximum number of pieces that one read examines for read-ahead."""
AHEAD_SHARE = 0.75
"""Share of the cache that unread bytes may use."""
REORDER = 4 * MIB
"""Maximum distance by which the kernel's own read-ahead reorders sequential requests."""


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """Bytes of blocks in memory, their limit, and the disk cache, if there is one."""

    memory: int
    limit: int
    disk: DiskUsage | None
    hits: int
    """Number of pieces of blocks that reads found in memory."""
    misses: int
    """Number of pieces that reads did not find in memory."""
    disk_hits: int
    """Number of ranges that the disk cache had."""


class ReadAhead:
    """Detects sequential reads of one handle."""

    __slots__ = ("_expected", "_window")

    def __init__(self) -> None:
        self._expected = 0
        self._window = 0

    def plan(self, offset: int, size: int) -> int:
        """Return the number of bytes to fetch beyond this read; 0 after a seek and at the start."""
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
    """Reads the bytes of layouts, for all files of one Filesystem.

    Critical section: none across an await. `_fetching` contains the GETs of whole blocks, so that
    several readers of one block wait for one GET. `_incoming` is the number of bytes that these
    GETs will add to the cache's unread bytes; it changes in the same step as `_fetching`.
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
        self._incoming = 0
        self._hits = self._misses = self._disk_hits = 0
        self._slots = asyncio.Semaphore(FETCHES)

    @property
    def usage(self) -> CacheUsage:
        """Usage of the caches."""
        disk = None if self._disk is None else self._disk.usage
        return CacheUsage(
            self._cache.size,
            self._cache.limit,
            disk,
            self._hits,
            self._misses,
            self._disk_hits,
        )

    async def read(self, layout: FileLayout, start: int, end: int, ahead: int) -> BytesLike:
        """Return the committed bytes [start, end), with zeros for holes.

        Also starts to fetch the next `ahead` bytes. Raises Corrupt if the store returns other bytes
        than were written, Unavailable.
        """
        self._cache.note_read(end - start)
        segments = layout.between(start, end)
        pieces = [piece for segment in segments for piece in _block_pieces(segment)]
        buffers: list[BytesLike] = [b""] * len(pieces)
        missing = []
        for number, (segment, index, low, high) in enumerate(pieces):
            cached = self._cached(segment.ref, index, low, high)
            if cached is None:
                missing.append(number)
            else:
                buffers[number] = cached
        self._hits += len(pieces) - len(missing)
        self._misses += len(missing)
        if missing:
            fetches = [asyncio.create_task(self._fetch(*pieces[n], ahead > 0)) for n in missing]
            self._prefetch(layout, end, ahead)
            for number, data in zip(missing, await _all(fetches), strict=True):
                buffers[number] = data
        else:
            self._prefetch(layout, end, ahead)
        return _assemble(start, end, pieces, buffers)

    async def close(self) -> None:
        """Cancel fetches, and close the disk cache."""
        tasks = list(self._fetching.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._disk is not None:
            await self._disk.close()

    def _cached(self, ref: SliceRef, index: int, low: int, high: int) -> memoryview | None:
        if ref.inline is not None:
            return memoryview(ref.inline)[low:high]
        return self._cache.find((ref.slice_id, index), low, high)

    async def _fetch(
        self, segment: Segment, index: int, low: int, high: int, whole: bool
    ) -> memoryview:
        """Return bytes [low, high) of one block. Waits for a fetch of the whole block, if any."""
        ref = segment.ref
        key = (ref.slice_id, index)
        task = self._fetching.get(key)
        if task is None and whole and self._has_room():
            task = self._start(ref, index)
        if task is not None:
            data = await asyncio.shield(task)
            # This marks the bytes as read, if the cache still has them.
            self._cache.find(key, low, high)
            return data[low:high]
        first = low - low % CHECKSUM_UNIT
        last = min(-(-high // CHECKSUM_UNIT) * CHECKSUM_UNIT, _block_size(ref, index))
        data = await self._load(ref, index, first, last)
        # A sequential reader does not read the same whole units again.
        if not whole or last - first > high - low:
            self._cache.add(key, first, data)
        return data[low - first : high - first]

    def _prefetch(self, layout: FileLayout, end: int, ahead: int) -> None:
        """Start to fetch the next `ahead` bytes. Examines about MAX_SCANNED pieces at most."""
        scanned = 0
        for start in range(end, end + ahead, BLOCK_SIZE):
            for segment in layout.between(start, min(start + BLOCK_SIZE, end + ahead)):
                for piece in _block_pieces(segment):
                    if not self._has_room():
                        return
                    self._prefetch_piece(*piece)
                    scanned += 1
            if scanned >= MAX_SCANNED:
                return

    def _prefetch_piece(self, segment: Segment, index: int, low: int, high: int) -> None:
        ref = segment.ref
        key = (ref.slice_id, index)
        available = key in self._fetching or self._cache.contains(key, low, high)
        if ref.inline is None and not available:
            self._start(ref, index)

    def _has_room(self) -> bool:
        """Return True if one more whole block may be fetched."""
        unread = self._cache.unread + self._incoming + BLOCK_SIZE
        return len(self._fetching) < PREFETCHES and unread <= self._cache.limit * AHEAD_SHARE

    def _start(self, ref: SliceRef, index: int) -> asyncio.Task[memoryview]:
        key, size = (ref.slice_id, index), _block_size(ref, index)
        task = asyncio.create_task(self._load(ref, index, 0, size))
        self._fetching[key] = task
        self._incoming += size
        until = min(size, ref.off + ref.length - index * BLOCK_SIZE)
        task.add_done_callback(lambda task: self._on_fetched(key, size, until, task))
        return task

    def _on_fetched(
        self, key: BlockId, size: int, until: int, task: asyncio.Task[memoryview]
    ) -> None:
        del self._fetching[key]
        self._incoming -= size
        # `exception` marks the error as retrieved. A read that waits for the task raises it. A
        # later read of the block makes its own request to the store.
        if not task.cancelled() and task.exception() is None:
            self._cache.add(key, 0, task.result(), until=until)

    async def _get_checked(self, key: str, first: int, length: int, sums: bytes) -> memoryview:
        """Return bytes of the store that match their sums; try twice."""
        data = await self._blocks.get(key, first, length)
        try:
            check(data, sums, key)
        except Corrupt:
            # The network may have changed the bytes.
            data = await self._blocks.get(key, first, length)
            check(data, sums, key)
        return data

    async def _load(self, ref: SliceRef, index: int, first: int, last: int) -> memoryview:
        """Return whole units [first, last) of a block, checked."""
        key = block_key(self._prefix, ref.slice_id, index)
        unit = (index * BLOCK_SIZE + first) // CHECKSUM_UNIT
        units = -(-(last - first) // CHECKSUM_UNIT)
        sums = ref.checksums[SUM_SIZE * unit : SUM_SIZE * (unit + units)]
        async with self._slots:
            data = await self._from_disk((ref.slice_id, index), first, last, sums)
            if data is None:
                data = await self._get_checked(key, first, last - first, sums)
                if self._disk is not None:
                    self._disk.put((ref.slice_id, index), first, data)
        return data

    async def _from_disk(
        self, block: BlockId, first: int, last: int, sums: bytes
    ) -> memoryview | None:
        """Return bytes of the disk cache that match their sums; None on a miss."""
        if self._disk is None:
            return None
        data = await self._disk.get(block, first, last)
        if data is not None:
            try:
                check(data, sums, "the disk cache")
            except Corrupt:
                self._disk.drop(block)
                return None
            self._disk_hits += 1
        return data


def _block_size(ref: SliceRef, index: int) -> int:
    return min(BLOCK_SIZE, ref.size - index * BLOCK_SIZE)


def _block_pieces(segment: Segment) -> list[tuple[Segment, int, int, int]]:
    """Cut a segment at block borders: (the piece's segment, block index, low, high in the block).

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
    """Return all results, or raise the first error after all have ended."""
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
    pieces: list[tuple[Segment, int, int, int]],
    buffers: list[BytesLike],
) -> BytesLike:
    """Join the pieces, with zeros for the holes between them. A single piece is not copied."""
    if len(pieces) == 1 and len(buffers[0]) == end - start:
        return buffers[0]
    parts: list[BytesLike] = []
    at = start
    for (segment, _, _, _), data in zip(pieces, buffers, strict=True):
        if segment.start > at:
            parts.append(bytes(segment.start - at))
        parts.append(data)
        at = segment.end
    if at < end:
        parts.append(bytes(end - at))
    return b"".join(parts)
