"""Dirty bytes in memory: one contiguous stretch, whether it ends within a write, and the bound."""

from __future__ import annotations

import asyncio
import mmap
from collections import deque
from typing import TYPE_CHECKING

from wrkfs.layout import BLOCK_SIZE, SLICE_MAX

if TYPE_CHECKING:
    from wrkfs.types import BytesLike, SliceId

PAGE = mmap.PAGESIZE
REST_WAIT = 0.05
"""Seconds for which a commit by itself waits for the second piece of a write(2).

*Measured* between the two, 129 times, with six busy processes on two processors: 0.4 ms as a rule,
4.2 ms at most. Together with COMMIT_DELAY it has to stay below the 200 ms of V2.
"""
FLUSH_WAIT = 0.01
"""The same for a commit that somebody waits for who may not be the one that writes."""
LOOKS = 4
"""Parts of these times, with a look at what came after each."""
HERE_WAIT = 20.0
"""Seconds for which a commit waits for a rest that has come and waits for the store itself.

A call of the store ends within 60 s; no call of ours may take 90 (D3).
"""
DIRTY_LIMIT = 128 * 1024 * 1024
"""Bytes written and not yet committed that one Filesystem holds; writers wait above it."""


class DirtyBudget:
    """Bounds dirty memory; waiting writers are let in first come, first served.

    Critical section: none across an await; `acquire` owns its bytes from the moment its future is
    resolved, also if it is cancelled at that moment.
    """

    def __init__(self, limit: int = DIRTY_LIMIT) -> None:
        self.used = 0
        self._limit = limit
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    async def acquire(self, size: int) -> None:
        """Waits until `size` more bytes fit; one write larger than the limit goes in alone."""
        if not self._waiting and self._fits(size):
            self.used += size
            return
        granted = asyncio.get_running_loop().create_future()
        self._waiting.append((granted, size))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(size)
            raise

    def take(self, size: int) -> None:
        """Owns `size` more bytes at once, beyond the limit if need be."""
        self.used += size

    def release(self, size: int) -> None:
        """Gives bytes back and lets waiting writers in."""
        self.used -= size
        while self._waiting:
            granted, wanted = self._waiting[0]
            if granted.cancelled():
                self._waiting.popleft()
            elif self._fits(wanted):
                self._waiting.popleft()
                self.used += wanted
                granted.set_result(None)
            else:
                break

    def _fits(self, size: int) -> bool:
        return self.used == 0 or self.used + size <= self._limit


class Pieces:
    """Whether the write(2) that came last came as a whole.

    The kernel hands over a write that begins within a page it does not hold in two requests, and
    the first one ends with that page. (More of them where the caller's memory must be read in
    first.) It holds the inode's lock from the first to the last, so an fsync and a truncation of
    its own wait, but neither a timer does nor FLUSH, RELEASE and OPEN with O_TRUNC.

    Critical section: from the moment `whole` returns to the next await of who called it nothing
    is taken in, because writers wait in `next` while somebody is in `whole`.
    """

    def __init__(self) -> None:
        self._rest: asyncio.Future[None] | None = None
        self._end = 0
        self._here = False
        """Whether that rest has been read, and waits to be taken in."""
        self._waiting = 0
        self._passed: asyncio.Future[None] | None = None
        """Of writers: nobody is in `whole` any more."""

    @property
    def pending(self) -> bool:
        """Whether the rest of a write may be on its way."""
        return self._rest is not None

    def awaits(self, offset: int) -> bool:
        """Whether a request to write at `offset` would be that rest."""
        return self.pending and offset == self._end

    def arrives(self) -> None:
        """That rest is here: who waits in `whole` waits until it is taken in, or until `end`."""
        self._here = True

    async def next(self) -> None:
        """A request that is no rest is here: who waits in `whole` goes on before it."""
        self.end()
        if self._waiting:
            if self._passed is None:
                self._passed = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._passed)

    def came(self, offset: int, size: int) -> None:
        """A request to write has been taken in."""
        self.end()
        self._end = offset + size
        if offset % PAGE and not self._end % PAGE:
            self._rest = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        """No write is under way, whatever came: who waits in `whole` goes on."""
        rest, self._rest, self._here = self._rest, None, False
        if rest is not None and not rest.done():
            rest.set_result(None)

    async def whole(self, patience: float) -> None:
        """Waits for the rest of a write that may have come in part, for `patience` seconds.

        It looks LOOKS times before it goes on without: when this process has not run for a while,
        the rest may have come and not been read yet. It waits until a rest that is here is taken
        in, for HERE_WAIT at most.
        """
        if self._rest is None:
            return
        self._waiting += 1
        try:
            await self._whole(self._rest, patience / LOOKS)
        finally:
            self._waiting -= 1
            if not self._waiting and self._passed is not None:
                self._passed.set_result(None)
                self._passed = None

    async def _whole(self, rest: asyncio.Future[None], pause: float) -> None:
        loop = asyncio.get_running_loop()
        limit = loop.time() + HERE_WAIT
        looks = 0
        while not (await asyncio.wait({rest}, timeout=pause))[0]:
            if not self._here or loop.time() > limit:
                looks += 1
                if looks == LOOKS:
                    self.end()


class Run:
    """One contiguous stretch of dirty bytes: a slice in the making.

    `pos` is its file offset, counted from the first byte to be appended where that is not known
    yet. Blocks that are full are sealed: their upload has started and they do not change any more.
    """

    __slots__ = ("blocks", "epoch", "length", "pos", "puts", "slice_id")

    def __init__(self, pos: int, slice_id: SliceId, epoch: int) -> None:
        self.pos = pos
        self.slice_id = slice_id
        self.epoch = epoch
        self.length = 0
        self.blocks: list[bytearray] = []
        self.puts: list[asyncio.Task[bytes]] = []

    @property
    def end(self) -> int:
        """File offset behind the last byte."""
        return self.pos + self.length

    def accepts(self, start: int, size: int) -> bool:
        """Whether a write at `start` changes unsealed bytes or continues the run, and fits."""
        sealed = self.pos + len(self.puts) * BLOCK_SIZE
        return sealed <= start <= self.end and start + size - self.pos <= SLICE_MAX

    def overlaps(self, start: int, end: int) -> bool:
        """Whether [start, end) touches the run."""
        return start < self.end and self.pos < end

    def write(self, start: int, data: BytesLike) -> None:
        """Copies bytes in; only where `accepts` said so."""
        view = memoryview(data)
        at = start - self.pos
        while view:
            index, within = divmod(at, BLOCK_SIZE)
            if index == len(self.blocks):
                self.blocks.append(bytearray())
            block = self.blocks[index]
            piece = view[: BLOCK_SIZE - within]
            patched = min(len(block) - within, len(piece))
            if patched:
                with memoryview(block) as target:
                    target[within : within + patched] = piece[:patched]
            # += copies once; assigning to a slice at the end would copy twice.
            block += piece[patched:]
            at += len(piece)
            view = view[len(piece) :]
        self.length = max(self.length, at)

    def read(self, start: int, end: int) -> list[tuple[int, bytes]]:
        """The run's bytes within [start, end) as (file offset, bytes)."""
        pieces = []
        low, high = max(start, self.pos) - self.pos, min(end, self.end) - self.pos
        while low < high:
            index, within = divmod(low, BLOCK_SIZE)
            size = min(high - low, BLOCK_SIZE - within)
            with memoryview(self.blocks[index]) as view:
                pieces.append((self.pos + low, bytes(view[within : within + size])))
            low += size
        return pieces
