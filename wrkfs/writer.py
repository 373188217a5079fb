"""Dirty data of files: buffers, uploads while writing, commits, and what is told when they fail."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from wrkfs.data.checksums import sums
from wrkfs.errors import Fenced, FileTooBig, StorageError, WrkfsError
from wrkfs.layout import BLOCK_SIZE, INLINE_MAX, MAX_FILE_SIZE, block_key
from wrkfs.types import Commit, Extent, SliceId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from wrkfs.data.interface import BlockStore
    from wrkfs.meta.interface import MetaStore
    from wrkfs.types import Attr, BytesLike, Ino

T = TypeVar("T")

COMMIT_DELAY = 0.1
"""Seconds after a write until a background commit starts: half of what V2 allows."""
DIRTY_LIMIT = 128 * 1024 * 1024
"""Bytes written and not yet committed that one Filesystem holds; writers wait above it."""
UPLOADS = 12
"""PUTs in flight of one Filesystem."""
SLICE_RANGE = 1024
"""Slice ids reserved at once."""
MAX_RUNS = 256
"""Scattered writes of one file that a commit carries; more start a commit at once."""
REFUSED = "written before the session was cut off"
"""What is said of bytes whose epoch ended before they were committed."""


class SliceIds:
    """Slice ids of this session, reserved in ranges.

    Critical section: `refill` holds a lock across the reservation; `take` never waits.
    """

    def __init__(self, meta: MetaStore) -> None:
        self._meta = meta
        self._epoch = 0
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    @property
    def epoch(self) -> int:
        """Epoch that reserved the ids: those of an epoch that has ended may be collected."""
        return self._epoch

    @property
    def ready(self) -> bool:
        """Whether `take` may be called."""
        return self._next < self._end and self._epoch == self._meta.epoch

    def take(self) -> SliceId:
        """The next id; only when `ready`, with no await in between."""
        taken = SliceId(self._next)
        self._next += 1
        return taken

    async def refill(self) -> None:
        """Reserves a range when none is left."""
        async with self._lock:
            if not self.ready:
                epoch = self._meta.epoch
                self._next = await self._meta.reserve_slices(SLICE_RANGE)
                self._end = self._next + SLICE_RANGE
                self._epoch = epoch


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


class Run:
    """One contiguous stretch of dirty bytes: a slice in the making.

    `pos` is its file offset, or 0 for bytes that are to be appended. Blocks that are full are
    sealed: their upload has started and they do not change any more.
    """

    __slots__ = ("blocks", "epoch", "length", "pos", "puts", "slice_id")

    def __init__(self, pos: int, ids: SliceIds) -> None:
        self.pos = pos
        self.slice_id = ids.take()
        self.epoch = ids.epoch
        self.length = 0
        self.blocks: list[bytearray] = []
        self.puts: list[asyncio.Task[bytes]] = []

    @property
    def end(self) -> int:
        """File offset behind the last byte."""
        return self.pos + self.length

    def accepts(self, start: int) -> bool:
        """Whether a write at `start` changes unsealed bytes or continues the run."""
        return self.pos + len(self.puts) * BLOCK_SIZE <= start <= self.end

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


class Rejoin(Protocol):
    """What is asked of the Filesystem when its session has been fenced."""

    async def __call__(self, epoch: int) -> None:
        """Registers a new epoch after `epoch`, unless there is one; opens all files in it.

        What was written under `epoch` and not committed is refused. Unavailable: not all files are
        open yet, and the next call goes on.
        """
        ...


@dataclass(slots=True)
class WritePath:
    """What all writers of one Filesystem share."""

    meta: MetaStore
    blocks: BlockStore
    prefix: str
    ids: SliceIds
    rejoin: Rejoin
    budget: DirtyBudget = field(default_factory=DirtyBudget)
    uploads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(UPLOADS))
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    joined: int = 0
    """The epoch in which all files are open; another than the store's: some wait to be opened."""
    changes: int = 0
    """Counts answers that a database crash could still undo."""
    durable: int = 0
    """The value of `changes` up to which everything survives a database crash."""

    def note_change(self) -> int:
        """A change has been answered that only a durable step makes safe; the new count.

        Never noted before the answer: a durable step in between would not cover it.
        """
        self.changes += 1
        return self.changes

    def note_durable(self, until: int) -> None:
        """A durable step succeeded that began when `changes` was `until`."""
        self.durable = max(self.durable, until)

    async def sync(self) -> None:
        """What this session was answered survives a crash; costs nothing when it does already."""
        if self.changes > self.durable:
            await self.sync_all()

    async def sync_all(self) -> None:
        """The same, and what any session was answered: a name may be another one's work."""
        until = self.changes
        await self.attempt(self.meta.sync)
        self.note_durable(until)

    async def attempt(self, call: Callable[[], Awaitable[T]]) -> tuple[T, int]:
        """Makes a call of the store; its answer, and the epoch it began in.

        Fenced says that the call changed nothing, so it is made once more, in a new epoch. Of a
        call that broke before the session was fenced nobody knows: Doubtful reaches the caller.
        """
        if self.joined != self.meta.epoch:
            await self.rejoin(self.joined)
        epoch = self.meta.epoch
        try:
            return await call(), epoch
        except Fenced:
            await self.rejoin(epoch)
        epoch = self.meta.epoch
        return await call(), epoch


class Writer:
    """Dirty bytes of one inode, shared by all its handles of one Filesystem.

    Critical sections:

    - `_gate` is held while a write enters the buffer and while the size is changed, so that a
      truncation is ordered with writes.
    - `_commit_lock` is held through one commit: commits of an inode follow each other in order, and
      what a `setattr` does under it lies between two commits.
    - The batch of a commit leaves `_runs` and becomes `_committing` in one step, and leaves
      `_committing` in the same step in which `on_committed` learns the new attributes: at every
      moment each acknowledged byte is either dirty here or in the database.
    - A commit runs in a task of its own: a caller that is cancelled does not tear it.

    Bytes belong to the epoch they were written in. When it ends before they are committed they are
    refused and count as lost: others may have changed the file since.
    """

    def __init__(
        self,
        ino: Ino,
        path: WritePath,
        on_committed: Callable[[Attr], None],
        on_lost: Callable[[WrkfsError], None],
    ) -> None:
        self._ino = ino
        self._path = path
        self._on_committed = on_committed
        self._on_lost = on_lost
        self._runs: list[Run] = []
        self._committing: list[Run] = []
        self._append = False
        self._held = 0
        self._gate = asyncio.Lock()
        self._commit_lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._committed_at = 0
        self._mtime_ns = 0
        self._kicked = False
        self._failure: WrkfsError | None = None

    # -- what is dirty --

    @property
    def dirty(self) -> bool:
        """Whether bytes wait for a commit or are in one."""
        return bool(self._runs or self._committing)

    @property
    def appending(self) -> bool:
        """Whether dirty bytes have no offset yet: the database gives it."""
        return self._append and self.dirty

    @property
    def end(self) -> int:
        """Least file size that the dirty bytes ask for."""
        if self._append:
            return 0
        return max((run.end for run in self._committing + self._runs), default=0)

    @property
    def mtime_ns(self) -> int:
        """Modification time that the dirty bytes will get."""
        return self._mtime_ns

    def overlay(self, start: int, end: int) -> list[tuple[int, bytes]]:
        """Dirty bytes within [start, end), oldest first."""
        if self._append:
            return []
        return [piece for run in self._committing + self._runs for piece in run.read(start, end)]

    # -- changes --

    async def write(self, offset: int, data: BytesLike, *, append: bool) -> None:
        """Takes bytes in; waits while too much is dirty. FileTooBig, Stale (see `fail`)."""
        size = len(data)
        if self._failure is not None:
            raise self._failure
        if not size:
            return
        if offset < 0 or offset + size > MAX_FILE_SIZE:
            raise FileTooBig(f"offset {offset} + {size}")
        await self._path.budget.acquire(size)
        try:
            async with self._gate:
                while self._must_commit_before(append):
                    await self.commit(durable=False)
                while not self._path.ids.ready:
                    await self._path.attempt(self._path.ids.refill)
                if self._failure is not None:
                    raise self._failure
                self._take(0 if append else offset, data, append)
        except BaseException:
            self._path.budget.release(size)
            raise
        self._held += size

    async def commit(self, *, durable: bool, others: bool = True) -> None:
        """Makes all dirty bytes visible, and with `durable` safe from crashes.

        Durable is then everything that the Filesystem has answered, names included; without
        `others` no more than the bytes of this file. Lost bytes are reported through `on_lost`,
        never raised here.
        """
        if self.dirty or (durable and self._undone(others)):
            await asyncio.shield(self._spawn(durable, others))

    async def settle(self) -> None:
        """Gives appended bytes their place, so that size and reads are exact."""
        if self.appending:
            await self.commit(durable=False)

    @contextlib.asynccontextmanager
    async def resizing(self) -> AsyncIterator[None]:
        """Everything dirty is committed before the body; writes wait until it ends."""
        async with self._gate:
            while self._runs:
                await self.commit(durable=False)
            async with self._commit_lock:
                yield

    @contextlib.asynccontextmanager
    async def between_commits(self) -> AsyncIterator[None]:
        """No commit is under way in the body; what is dirty stays so."""
        async with self._commit_lock:
            yield

    def set_mtime(self, mtime_ns: int) -> None:
        """The user chose the time: the commit of earlier writes keeps it."""
        self._mtime_ns = mtime_ns

    def fail(self, error: WrkfsError) -> None:
        """The file is gone for this session: nothing can be written any more."""
        self._failure = error

    def refuse(self, error: WrkfsError) -> None:
        """Drops what is dirty, but for what is in a commit: that learns its end by itself."""
        if self._runs:
            batch, held = self._take_out()
            self._drop(batch, held)
            self._on_lost(error)

    # -- inside --

    def _undone(self, others: bool) -> bool:
        """Whether a crash could undo what a durable commit is asked for."""
        return (self._path.changes if others else self._committed_at) > self._path.durable

    def _take_out(self) -> tuple[list[Run], int]:
        """The runs and the bytes they hold of the budget; the buffer is empty then."""
        batch, self._runs = self._runs, []
        held, self._held = self._held, 0
        self._kicked = False
        self._cancel_timer()
        return batch, held

    def _drop(self, batch: list[Run], held: int) -> None:
        """Ends what runs that left the buffer still use."""
        self._path.budget.release(held)
        for run in batch:
            for put in run.puts:
                put.cancel()

    def _must_commit_before(self, append: bool) -> bool:
        """Appended and placed bytes are never dirty together; scattered writes are bounded."""
        return (self.dirty and self._append != append) or len(self._runs) >= 4 * MAX_RUNS

    def _take(self, offset: int, data: BytesLike, append: bool) -> None:
        """Puts bytes into the newest run that may hold them. No await: see the gate."""
        end = offset + len(data)
        self._append = append
        self._mtime_ns = time.time_ns()
        target = None
        if append and self._runs:
            target = self._runs[-1]
            offset = target.end
        elif not append:
            for run in reversed(self._runs):
                if run.accepts(offset):
                    target = run
                    break
                if run.overlaps(offset, end):
                    break
        if target is None:
            target = Run(offset, self._path.ids)
            self._runs.append(target)
        target.write(offset, data)
        self._seal_full(target)
        if len(self._runs) >= MAX_RUNS and not self._kicked:
            self._kick()
        elif self._timer is None and not self._kicked:
            self._timer = asyncio.get_running_loop().call_later(COMMIT_DELAY, self._kick)

    def _seal_full(self, run: Run) -> None:
        while len(run.puts) < run.length // BLOCK_SIZE:
            self._seal(run)

    def _seal(self, run: Run) -> None:
        index = len(run.puts)
        run.puts.append(asyncio.create_task(self._put(run.slice_id, index, run.blocks[index])))

    async def _put(self, slice_id: SliceId, index: int, block: bytearray) -> bytes:
        """Stores one block; its checksums."""
        async with self._path.uploads:
            found = sums(block)
            await self._path.blocks.put(block_key(self._path.prefix, slice_id, index), block)
            return found

    def _kick(self) -> None:
        """Starts a commit in the background."""
        self._cancel_timer()
        self._kicked = True
        self._spawn(durable=False, others=False)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _spawn(self, durable: bool, others: bool) -> asyncio.Task[None]:
        task = asyncio.create_task(self._commit(durable, others))
        self._path.tasks.add(task)
        task.add_done_callback(self._path.tasks.discard)
        return task

    async def _commit(self, durable: bool, others: bool) -> None:
        async with self._commit_lock:
            self._cancel_timer()
            until = self._path.changes
            try:
                if self._runs:
                    await self._commit_runs(durable)
                elif durable and self._undone(others):
                    await self._path.sync()
                    return
                else:
                    return
            except WrkfsError as error:
                self._on_lost(error)
                return
            except BaseException as error:
                self._on_lost(StorageError(type(error).__name__))
                raise
            if durable:
                self._path.note_durable(until)
            else:
                self._committed_at = self._path.note_change()

    async def _commit_runs(self, durable: bool) -> None:
        batch, held = self._take_out()
        self._committing = batch
        try:
            self._on_committed(await self._commit_batch(batch, durable))
        finally:
            self._committing = []
            self._drop(batch, held)

    async def _commit_batch(self, batch: list[Run], durable: bool) -> Attr:
        """Uploads and commits; Fenced for bytes of an epoch that has ended, Stale (see `fail`)."""
        self._check(batch)
        extents = await self._upload(batch)
        self._check(batch)
        epoch = self._path.meta.epoch
        try:
            return await self._path.meta.commit(
                Commit(self._ino, extents, self._append, durable, self._mtime_ns)
            )
        except Fenced:
            await self._path.rejoin(epoch)
            raise

    def _check(self, batch: list[Run]) -> None:
        if self._failure is not None:
            raise self._failure
        if any(run.epoch != self._path.meta.epoch for run in batch):
            raise Fenced(REFUSED)

    async def _upload(self, batch: list[Run]) -> tuple[Extent, ...]:
        """Stores what is not stored yet; small slices travel in the commit instead."""
        for run in batch:
            if run.length > INLINE_MAX:
                while len(run.puts) < len(run.blocks):
                    self._seal(run)
        puts = [put for run in batch for put in run.puts]
        for outcome in await asyncio.gather(*puts, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        return tuple(_extent(run) for run in batch)


def _extent(run: Run) -> Extent:
    if not run.puts:
        return Extent(run.pos, run.slice_id, run.length, b"", bytes(run.blocks[0]))
    checksums = b"".join(put.result() for put in run.puts)
    return Extent(run.pos, run.slice_id, run.length, checksums, None)
