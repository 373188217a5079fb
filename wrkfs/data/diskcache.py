"""Blocks on the local disk: a bounded cache that survives a remount and may fail at any time.

Keys are immutable, so nothing here is ever stale; the reader compares what it gets with the sums in
the database. A disk that is full, read-only, slow or gone costs only the saving: reads then go to
the object store.
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

from wrkfs.data.cachefiles import CacheFiles, Piece, Refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wrkfs.config import Limits, VolumeConfig
    from wrkfs.data.cache import BlockId

    T = TypeVar("T")

RESERVE = 0.05
"""Share of the disk that the cache leaves free: it is the least important thing there."""
THREADS = 4
PATIENCE = 5.0
"""Seconds that a read may take until the store is asked instead."""
PAUSE = 10.0
"""Seconds without reads or writes after a failure of either."""
QUEUE = 16 * 1024 * 1024
"""Bytes waiting to be written; a disk slower than the store gets what it can take."""
OVERHEAD = 4096
"""Bytes that a file costs beyond its content."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """How a disk cache does. Sizes in bytes; `state` is `ready` or says what is wrong."""

    size: int
    limit: int
    hits: int
    misses: int
    state: str


def cache_directory(base: Path, volume: VolumeConfig) -> Path:
    """Where below `base` the blocks of a volume are kept: a name that tells nothing."""
    # Not the endpoint: a store may move, and its blocks stay the same.
    place = f"{volume.volume}\n{volume.store.bucket}\n{volume.store.prefix}"
    return base / hashlib.sha256(place.encode()).hexdigest()[:32]


async def open_cache(volume: VolumeConfig, limits: Limits) -> DiskCache | None:
    """The started disk cache of a volume; None when none is wanted."""
    if limits.cache_dir is None or not limits.disk:
        return None
    cache = DiskCache(cache_directory(limits.cache_dir, volume), limits.disk)
    await cache.start()
    return cache


class DiskCache:
    """See the module.

    Critical sections: `_pieces`, `_size` and the queue change without an await in between; a piece
    enters the index after its file is written and leaves it before its file is removed. One task
    writes.
    """

    def __init__(self, directory: Path, limit: int, *, reserve: float = RESERVE) -> None:
        """At most `limit` bytes below `directory`, which belongs to this cache alone."""
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
        """Prepares the directory; what is in it is found in the background. Never fails."""
        try:
            await self._run(self._files.prepare)
        except (Refused, OSError) as error:
            self._state = str(error)
            _log.warning("no block cache in %s: %s", self._directory, error)
            return
        self._open = True
        self._scanner = asyncio.create_task(self._scan())

    async def close(self) -> None:
        """Ends; what is not written yet is not kept. Idempotent."""
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
        """How it does."""
        return DiskUsage(self._size, self._limit, self._hits, self._misses, self._state)

    async def get(self, block: BlockId, first: int, last: int) -> memoryview | None:
        """The bytes [first, last) of a block as the disk has them; None when it has not."""
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
            self._tell("the disk does not answer")
        except OSError:
            self.drop(block)
        else:
            self._hits += 1
            return data
        self._misses += 1
        return None

    def put(self, block: BlockId, first: int, data: memoryview) -> None:
        """Has a piece written in the background, unless the disk is behind or has failed."""
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
        """Forgets a block whose file is damaged or gone."""
        gone = self._pieces.pop(block, [])
        self._size -= sum(piece.size + OVERHEAD for piece in gone)
        if gone and self._open:
            self._dropped += gone
            self._wake()

    # -- inside --

    def _find(self, block: BlockId, first: int, last: int) -> Piece | None:
        for piece in self._pieces.get(block, ()):
            if piece.first <= first and last <= piece.first + piece.size:
                return piece
        return None

    def _add(self, piece: Piece) -> None:
        self._pieces.setdefault(piece.block, []).append(piece)
        self._size += piece.size + OVERHEAD

    def _shrink(self, size: int) -> list[Piece]:
        """Takes the oldest pieces out of the index until it has at most `size` bytes."""
        victims: list[Piece] = []
        while self._pieces and self._size > size:
            _, pieces = self._pieces.popitem(last=False)
            self._size -= sum(piece.size + OVERHEAD for piece in pieces)
            victims += pieces
        return victims

    async def _scan(self) -> None:
        try:
            found = await self._run(self._files.scan)
        except OSError as error:
            self._tell(error.strerror or str(error))
            return
        fresh, self._pieces = self._pieces, OrderedDict()
        for piece in found:
            if piece not in fresh.get(piece.block, ()):
                self._add(piece)
        for block, pieces in fresh.items():
            self._pieces.setdefault(block, []).extend(pieces)
            self._pieces.move_to_end(block)
        victims = self._shrink(self._limit)
        self._state = "ready"
        await self._run(self._files.remove, victims)

    def _wake(self) -> None:
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_out())

    async def _write_out(self) -> None:
        """Removes and writes in turn, so that no removal meets a newer file of the same name."""
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
            self._tell(error.strerror or str(error))
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                await self._run(self._files.remove, self._shrink(self._size * 7 // 8))
        else:
            self._add(piece)
            self._pieces.move_to_end(piece.block)
            if self._state != "starting":
                self._state = "ready"

    def _tell(self, trouble: str) -> None:
        """Says once what is wrong, until it works again."""
        if self._state != trouble:
            self._state = trouble
            _log.warning("block cache in %s: %s; reading without it", self._directory, trouble)

    async def _run(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)


def _now() -> float:
    return asyncio.get_running_loop().time()
