"""Dirty data of files: buffers, uploads while writing, commits, and what is told when they fail."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from wrkfs.data.checksums import sums
from wrkfs.dirty import FLUSH_WAIT, REST_WAIT, Pieces, Run
from wrkfs.errors import Fenced, FileTooBig, StorageError, WrkfsError
from wrkfs.layout import BLOCK_SIZE, INLINE_MAX, MAX_FILE_SIZE, SLICE_MAX, block_key
from wrkfs.types import Commit, Extent, SliceId
from wrkfs.write_path import REFUSED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from wrkfs.types import Attr, BytesLike, Ino
    from wrkfs.write_path import WritePath

COMMIT_DELAY = 0.1
"""Seconds after a write until a background commit starts: half of what V2 allows."""
MAX_RUNS = 256
"""Scattered writes of one file that a commit carries; more start a commit at once."""


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
    - A commit waits for the rest of a write(2) that came in part (see `Pieces`), long enough as a
      rule, unless who asks knows that nobody is writing: so a crash leaves no half of it.

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
        self._pieces = Pieces()
        self._held = 0
        self._gate = asyncio.Lock()
        self._commit_lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._committed_at = 0
        self._mtime_ns = 0
        self._kicked = False
        self._failure: WrkfsError | None = None
        self._new = False
        """From `made` to the first durable commit."""

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
    def amount(self) -> int:
        """Dirty bytes, those that were written twice in different runs counted twice."""
        return sum(run.length for run in self._committing + self._runs)

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

    @property
    def pending(self) -> bool:
        """Whether the rest of a write(2) may be on its way."""
        return self._pieces.pending

    async def write(
        self, offset: int, data: BytesLike, *, append: bool, in_pieces: bool = True
    ) -> None:
        """Takes bytes in; waits while too much is dirty. FileTooBig, Stale (see `fail`).

        Without `in_pieces` this is a whole write.
        """
        size = len(data)
        if offset < 0 or offset + size > MAX_FILE_SIZE:
            raise FileTooBig(f"offset {offset} + {size}")
        if size <= SLICE_MAX:
            await self._write(offset, data, append)
            if not in_pieces:
                self._pieces.end()
            return
        view = memoryview(data)
        for low in range(0, size, SLICE_MAX):
            await self._write(offset + low, view[low : low + SLICE_MAX], append)

    async def _write(self, offset: int, data: BytesLike, append: bool) -> None:
        size = len(data)
        if self._failure is not None:
            raise self._failure
        if not size:
            return
        rest = self._pieces.awaits(offset)
        if rest:
            self._pieces.arrives()
            self._path.budget.take(size)
        else:
            await self._pieces.next()
            await self._path.budget.acquire(size)
        try:
            async with self._gate:
                while self._must_commit_before(append):
                    await self.commit(durable=False, whole=True)
                while not self._path.ids.ready:
                    await self._path.attempt(self._path.ids.refill)
                if self._failure is not None:
                    raise self._failure
                self._take(0 if append else offset, data, append)
                self._pieces.came(offset, size)
        except BaseException:
            self._path.budget.release(size)
            if rest:
                self._pieces.end()
            raise
        self._held += size

    async def commit(
        self, *, durable: bool, others: bool = True, foreign: bool = False, whole: bool = False
    ) -> None:
        """Makes all dirty bytes visible, and with `durable` safe from crashes.

        Durable is then everything that the Filesystem has answered, names included; without
        `others` no more than the bytes of this file; with `foreign` also what other sessions were
        answered before. Lost bytes are reported through `on_lost`, never raised here.
        `whole`: no write(2) is under way, because the kernel lets none be while it asks.
        """
        if whole:
            self._pieces.end()
        if self._new and durable:
            self._new = False
            self._path.makes_empty = not self.dirty and not self._committed_at
        if self.dirty or (durable and (foreign or self._undone(others))):
            await asyncio.shield(self._spawn(FLUSH_WAIT, durable, others, foreign))

    async def settle(self) -> None:
        """Gives appended bytes their place, so that size and reads are exact."""
        if self.appending:
            await self.commit(durable=False)

    @contextlib.asynccontextmanager
    async def resizing(self) -> AsyncIterator[None]:
        """Everything dirty is committed before the body; writes wait until it ends."""
        await self._pieces.whole(FLUSH_WAIT)
        async with self._gate:
            while self._runs:
                await self.commit(durable=False, whole=True)
            async with self._commit_lock:
                yield

    @contextlib.asynccontextmanager
    async def between_commits(self) -> AsyncIterator[None]:
        """No commit is under way in the body; what is dirty stays so. For SETATTR: see `commit`."""
        self._pieces.end()
        async with self._commit_lock:
            yield

    def made(self, durable_until: int | None) -> None:
        """The file was made just now; durably, when `changes` was that before."""
        self._new = True
        if durable_until is None:
            self._path.note_change()
        else:
            self._path.note_durable(durable_until)

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
            self._path.give_up(batch)
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
        if self.dirty and self._append != append:
            return True
        return len(self._runs) >= 4 * MAX_RUNS and not self._pieces.pending

    def _take(self, offset: int, data: BytesLike, append: bool) -> None:
        """Puts bytes into the newest run that may hold them. No await: see the gate."""
        if append and self._runs:
            offset = self._runs[-1].end
        end = offset + len(data)
        self._append = append
        self._mtime_ns = time.time_ns()
        target = None
        for run in reversed(self._runs):
            if run.accepts(offset, len(data)):
                target = run
                break
            if run.overlaps(offset, end):
                break
        if target is None:
            target = Run(offset, self._path.ids.take(), self._path.ids.epoch)
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
        async with self._path.turn():
            found = sums(block)
            await self._path.blocks.put(block_key(self._path.prefix, slice_id, index), block)
            return found

    def _kick(self) -> None:
        """Starts a commit in the background."""
        self._cancel_timer()
        self._kicked = True
        self._spawn(REST_WAIT)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _spawn(
        self,
        patience: float,
        durable: bool = False,
        others: bool = False,
        foreign: bool = False,
    ) -> asyncio.Task[None]:
        task = asyncio.create_task(self._commit(patience, durable, others, foreign))
        self._path.tasks.add(task)
        task.add_done_callback(self._path.tasks.discard)
        return task

    async def _commit(self, patience: float, durable: bool, others: bool, foreign: bool) -> None:
        async with self._commit_lock:
            await self._pieces.whole(patience)
            self._cancel_timer()
            until = self._path.changes
            try:
                if self._runs:
                    await self._commit_runs(durable)
                elif durable and (foreign or self._undone(others)):
                    await self._path.sync_all()
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
        except BaseException:
            self._path.give_up(batch)
            raise
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
        if puts:
            # The first failure ends the batch: what waits for its turn would fail as late again.
            done, _ = await asyncio.wait(puts, return_when=asyncio.FIRST_EXCEPTION)
            for put in done:
                put.result()
        return tuple(_extent(run) for run in batch)


def _extent(run: Run) -> Extent:
    if not run.puts:
        return Extent(run.pos, run.slice_id, run.length, b"", bytes(run.blocks[0]))
    checksums = b"".join(put.result() for put in run.puts)
    return Extent(run.pos, run.slice_id, run.length, checksums, None)
