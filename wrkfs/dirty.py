"""Dirty bytes in memory: contiguous runs, split write(2) calls, and the memory bound."""

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
"""Seconds for which a background commit waits for the second request of a write(2).

*Measured* between the two requests, 129 times, with six busy processes on two processors: usually
0.4 ms, at most 4.2 ms. Together with COMMIT_DELAY it must stay below the 200 ms of promise V2.
"""
FLUSH_WAIT = 0.01
"""Seconds for a commit that a caller waits for, while another program may be writing."""
CHECKS = 4
"""Number of parts of these times; the commit checks for the rest after each part."""
ARRIVED_WAIT = 20.0
"""Seconds for which a commit waits for a rest that has arrived and itself waits for the store.

A call of the store ends within 60 s, and a call of the drive must end within 90 s (promise D3).
"""
DIRTY_LIMIT = 128 * 1024 * 1024
"""Maximum number of bytes of one Filesystem that are written and not committed; writers wait."""


class DirtyBudget:
    """Bounds dirty memory. Waiting writers proceed in the order of their calls.

    Critical section: none across an await. `acquire` owns its bytes from the moment its future is
    resolved, even if it is cancelled at that moment.
    """

    def __init__(self, limit: int = DIRTY_LIMIT) -> None:
        self.used = 0
        self._limit = limit
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    async def acquire(self, size: int) -> None:
        """Wait until `size` more bytes fit. A write larger than the limit waits for 0 bytes."""
        if not self._waiting and self._fits(size):
            self.used += size
            return
        grant = asyncio.get_running_loop().create_future()
        self._waiting.append((grant, size))
        try:
            await grant
        except asyncio.CancelledError:
            if grant.done() and not grant.cancelled():
                self.release(size)
            raise

    def take(self, size: int) -> None:
        """Acquire `size` bytes at once, beyond the limit if necessary."""
        self.used += size

    def release(self, size: int) -> None:
        """Release bytes and resume waiting writers."""
        self.used -= size
        while self._waiting:
            grant, waiting_size = self._waiting[0]
            if grant.cancelled():
                self._waiting.popleft()
            elif self._fits(waiting_size):
                self._waiting.popleft()
                self.used += waiting_size
                grant.set_result(None)
            else:
                break

    def _fits(self, size: int) -> bool:
        return self.used == 0 or self.used + size <= self._limit


class SplitWrite:
    """Detects a write(2) of which only a part has arrived.

    If a write(2) begins within a page that the kernel has not cached, the kernel sends it in two
    requests. The first request ends with that page. The kernel sends more requests if it must first
    read the caller's memory from disk. The kernel locks the inode from the first request to the
    last. So an fsync or a truncation of this kernel waits for the rest. A timer, FLUSH, RELEASE and
    OPEN with O_TRUNC do not.

    Critical section: writers wait in `before_write` while a task is in `wait`. So no request is
    recorded between the return of `wait` and the next await of its caller.
    """

    def __init__(self) -> None:
        self._rest: asyncio.Future[None] | None = None
        """Resolved when the rest of the write is recorded, or no longer expected."""
        self._end = 0
        self._arrived = False
        """True if the rest has arrived and is not recorded yet."""
        self._waiting = 0
        """Number of tasks in `wait`."""
        self._wait_over: asyncio.Future[None] | None = None
        """Resolved when no task is in `wait`; writers wait for it."""

    @property
    def pending(self) -> bool:
        """True if the rest of a write may follow."""
        return self._rest is not None

    def is_rest(self, offset: int) -> bool:
        """Return True if a write request at `offset` is the expected rest."""
        return self.pending and offset == self._end

    def rest_arrives(self) -> None:
        """Record the arrival of the rest: `wait` then waits until `record` or `end`."""
        self._arrived = True

    async def before_write(self) -> None:
        """Call before a request that is not the rest. Tasks in `wait` continue before it."""
        self.end()
        if self._waiting:
            if self._wait_over is None:
                self._wait_over = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._wait_over)

    def record(self, offset: int, size: int) -> None:
        """Record a write request whose bytes are in the buffer."""
        self.end()
        self._end = offset + size
        if offset % PAGE and not self._end % PAGE:
            self._rest = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        """Expect no rest: tasks in `wait` continue."""
        rest, self._rest, self._arrived = self._rest, None, False
        if rest is not None and not rest.done():
            rest.set_result(None)

    async def wait(self, patience: float) -> None:
        """Wait up to `patience` seconds for the rest of a split write.

        The method checks CHECKS times: if the process was not scheduled for a while, the rest may
        have arrived unread. It waits up to ARRIVED_WAIT for a rest that has arrived.
        """
        if self._rest is None:
            return
        self._waiting += 1
        try:
            await self._wait(self._rest, patience / CHECKS)
        finally:
            self._waiting -= 1
            if not self._waiting and self._wait_over is not None:
                self._wait_over.set_result(None)
                self._wait_over = None

    async def _wait(self, rest: asyncio.Future[None], pause: float) -> None:
        loop = asyncio.get_running_loop()
        limit = loop.time() + ARRIVED_WAIT
        checks = 0
        while not (await asyncio.wait({rest}, timeout=pause))[0]:
            if not self._arrived or loop.time() > limit:
                checks += 1
                if checks == CHECKS:
                    self.end()


class Run:
    """One contiguous run of dirty bytes, which one slice will store.

    `pos` is the file offset. Appended bytes have no offset yet; then `pos` counts from the first of
    them. Full blocks are sealed: their upload has started, and they no longer change.
    """

    __slots__ = ("blocks", "epoch", "length", "pos", "slice_id", "uploads")

    def __init__(self, pos: int, slice_id: SliceId, epoch: int) -> None:
        self.pos = pos
        self.slice_id = slice_id
        self.epoch = epoch
        self.length = 0
        self.blocks: list[bytearray] = []
        self.uploads: list[asyncio.Task[bytes]] = []

    @property
    def end(self) -> int:
        """File offset behind the last byte."""
        return self.pos + self.length

    def accepts(self, start: int, size: int) -> bool:
        """Return True if a write at `start` changes unsealed bytes or continues the run, and fits.

        Only then may the caller call `write`.
        """
        sealed_end = self.pos + len(self.uploads) * BLOCK_SIZE
        return sealed_end <= start <= self.end and start + size - self.pos <= SLICE_MAX

    def overlaps(self, start: int, end: int) -> bool:
        """Return True if [start, end) overlaps the run."""
        return start < self.end and self.pos < end

    def write(self, start: int, data: BytesLike) -> None:
        """Copy bytes into the run."""
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
            # += copies once. An assignment to a slice at the end would copy twice.
            block += piece[patched:]
            at += len(piece)
            view = view[len(piece) :]
        self.length = max(self.length, at)

    def read(self, start: int, end: int) -> list[tuple[int, bytes]]:
        """Return the run's bytes within [start, end) as (file offset, bytes)."""
        pieces = []
        low, high = max(start, self.pos) - self.pos, min(end, self.end) - self.pos
        while low < high:
            index, within = divmod(low, BLOCK_SIZE)
            size = min(high - low, BLOCK_SIZE - within)
            with memoryview(self.blocks[index]) as view:
                pieces.append((self.pos + low, bytes(view[within : within + size])))
            low += size
        return pieces
