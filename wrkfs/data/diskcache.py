"""Blocks on the local disk: a cache with a maximum size that survives a remount.

Blocks are immutable, so a cached piece is never stale. The reader compares the bytes with the
checksums in the database. If the disk is full, read-only, slow or missing, reads go to the object
store.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
from collections import OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from wrkfs.data.cachefiles import CacheFiles, Piece, Unusable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wrkfs.config import Limits, VolumeConfig
    from wrkfs.data.cache import BlockId

    T = TypeVar("T")

RESERVE = 0.05
"""Share of the disk that the cache leaves free: other data is more important."""
THREADS = 4
PATIENCE = 5.0
"""Seconds after which a read goes to the store instead."""
PAUSE = 10.0
"""Seconds without reads or writes after a failure."""
QUEUE = 16 * 1024 * 1024
"""Maximum number of bytes that wait to be written. A slow disk does not cache the rest."""
OVERHEAD = 4096
"""Bytes of disk space that each file needs beyond its content."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Usage and state of a disk cache. Sizes in bytes; `state` is `ready` or an error text."""

    size: int
    limit: int
    hits: int
    misses: int
    state: str


def cache_directory(base: Path, volume: VolumeConfig) -> Path:
    """Return the cache directory of a volume below `base`. The name is a hash, and reveals nothing.

    The endpoint is not part of the hash: after a move of the store the blocks are the same.
    """
    place = f"{volume.volume}\n{volume.store.bucket}\n{volume.store.prefix}"
    return base / hashlib.sha256(place.encode()).hexdigest()[:32]


async def open_cache(volume: VolumeConfig, limits: Limits) -> DiskCache | None:
    """Start the disk cache of a volume; None if `limits` has no disk cache."""
    if limits.cache_dir is None or not limits.disk:
        return None
    cache = DiskCache(cache_directory(limits.cache_dir, volume), limits.disk)
    await cache.start()
    return cache


class DiskCache:
    """The cache (see above).

    Critical sections: `_pieces`, `_size` and the queue change without an await in between. A piece
    enters the index after the write of its file, and leaves the index before its file is deleted.
    One task writes.
    """

    def __init__(self, directory: Path, limit: int, *, reserve: float = RESERVE) -> None:
        """`limit` is the maximum size in bytes. No other process may use `directory`."""
        self._directory = directory
        self._files = CacheFiles(directory, reserve)
        self._limit = limit
        self._pieces: OrderedDict[BlockId, list[Piece]] = OrderedDict()
        self._size = 0
        self._queue: deque[tuple[Piece, memoryview]] = deque()
        self._queued = 0
        self._dropped: list[Piece] = []
        self._writer: asyncio.Task[None] | None = None
        self._scanner: asyncio.Task[None] | None = None
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="cache")
        self._state = "starting"
        self._open = False
        self._resume_reads = self._resume_writes = 0.0
        self._hits = self._misses = 0

    async def start(self) -> None:
        """Prepare the directory, and index its files in the background. Raises no error."""
        try:
            await self._run(self._files.prepare)
        except (Unusable, OSError) as error:
            self._state = str(error)
            _log.warning("no block cache in %s: %s", self._directory, error)
            return
        self._open = True
        self._scanner = asyncio.create_task(self._scan())

    async def close(self) -> None:
        """Stop, and drop pieces that wait to be written. Idempotent."""
        self._open = False
        self._queue.clear()
        tasks = [task for task in (self._writer, self._scanner) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._files.close()

    @property
    def usage(self) -> DiskUsage:
        """Usage and state of the cache."""
        return DiskUsage(self._size, self._limit, self._hits, self._misses, self._state)

    async def get(self, block: BlockId, first: int, last: int) -> memoryview | None:
        """Return the bytes [first, last) of a block from the disk, unchecked; None on a miss."""
        piece = self._find(block, first, last)
        if piece is None or not self._open or _now() < self._resume_reads:
            self._misses += 1
            return None
        self._pieces.move_to_end(block)
        try:
            async with asyncio.timeout(PATIENCE):
                data = await self._run(self._files.read, piece, first, last - first)
        except TimeoutError:
            self._resume_reads = self._resume_writes = _now() + PAUSE
            self._report("the disk does not answer")
        except OSError:
            self.drop(block)
        else:
            self._hits += 1
            return data
        self._misses += 1
        return None

    def put(self, block: BlockId, first: int, data: memoryview) -> None:
        """Write a piece in the background, unless the queue is full or the disk has failed."""
        if (
            not self._open
            or self._queued + len(data) > QUEUE
            or len(data) + OVERHEAD > self._limit
            or _now() < self._resume_writes
            or self._find(block, first, first + len(data)) is not None
        ):
            return
        self._queue.append((Piece(block, first, len(data)), data))
        self._queued += len(data)
        self._wake()

    def drop(self, block: BlockId) -> None:
        """Drop a block whose file is damaged or missing."""
        pieces = self._pieces.pop(block, [])
        self._size -= sum(piece.size + OVERHEAD for piece in pieces)
        if pieces and self._open:
            self._dropped += pieces
            self._wake()

    # -- internal --

    def _find(self, block: BlockId, first: int, last: int) -> Piece | None:
        for piece in self._pieces.get(block, ()):
            if piece.first <= first and last <= piece.first + piece.size:
                return piece
        return None

    def _add(self, piece: Piece) -> None:
        self._pieces.setdefault(piece.block, []).append(piece)
        self._size += piece.size + OVERHEAD

    def _shrink(self, size: int) -> list[Piece]:
        """Remove the oldest pieces from the index until it has at most `size` bytes."""
        victims: list[Piece] = []
        while self._pieces and self._size > size:
            _, pieces = self._pieces.popitem(last=False)
            self._size -= sum(piece.size + OVERHEAD for piece in pieces)
            victims += pieces
        return victims

    async def _scan(self) -> None:
        try:
            old_pieces = await self._run(self._files.scan)
        except OSError as error:
            self._report(error.strerror or str(error))
            return
        new_pieces, self._pieces = self._pieces, OrderedDict()
        for piece in old_pieces:
            if piece not in new_pieces.get(piece.block, ()):
                self._add(piece)
        for block, pieces in new_pieces.items():
            self._pieces.setdefault(block, []).extend(pieces)
            self._pieces.move_to_end(block)
        victims = self._shrink(self._limit)
        self._state = "ready"
        await self._run(self._files.remove, victims)

    def _wake(self) -> None:
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_out())

    async def _write_out(self) -> None:
        """Delete and write one file at a time, so that no deletion removes a newer file."""
        while self._dropped or self._queue:
            dropped, self._dropped = self._dropped, []
            await self._run(self._files.remove, dropped)
            if not self._queue:
                continue
            piece, data = self._queue.popleft()
            try:
                await self._write(piece, data)
            finally:
                self._queued -= len(data)
        self._writer = None

    async def _write(self, piece: Piece, data: memoryview) -> None:
        covered = [
            old
            for old in self._pieces.get(piece.block, ())
            if piece.first <= old.first and old.first + old.size <= piece.first + piece.size
        ]
        for old in covered:
            self._pieces[piece.block].remove(old)
            self._size -= old.size + OVERHEAD
        victims = covered + self._shrink(self._limit - piece.size - OVERHEAD)
        try:
            await self._run(self._files.store, piece, data, victims)
        except OSError as error:
            self._resume_writes = _now() + PAUSE
            self._queue.clear()
            self._queued = len(data)
            self._report(error.strerror or str(error))
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                await self._run(self._files.remove, self._shrink(self._size * 7 // 8))
        else:
            self._add(piece)
            self._pieces.move_to_end(piece.block)
            if self._state != "starting":
                self._state = "ready"

    def _report(self, problem: str) -> None:
        """Log a problem, once until the cache is ready again."""
        if self._state != problem:
            self._state = problem
            _log.warning("block cache in %s: %s; reading without it", self._directory, problem)

    async def _run(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)


def _now() -> float:
    return asyncio.get_running_loop().time()
