"""Dirty data of files: buffers, uploads during writes, commits, and the report of lost bytes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from wrkfs.data.checksums import sums
from wrkfs.dirty import FLUSH_WAIT, REST_WAIT, Run, SplitWrite
from wrkfs.errors import Fenced, FileTooBig, StorageError, WrkfsError
from wrkfs.layout import BLOCK_SIZE, INLINE_MAX, MAX_FILE_SIZE, SLICE_MAX, block_key
from wrkfs.types import Commit, Extent, SliceId
from wrkfs.write_path import DISCARDED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from wrkfs.types import Attr, BytesLike, Ino
    from wrkfs.write_path import WritePath

COMMIT_DELAY = 0.1
"""Seconds from a write to the start of its background commit: half of what promise V2 allows."""
MAX_RUNS = 256
"""Number of runs of one file at which a commit starts immediately."""


class Writer:
    """Dirty bytes of one inode, shared by all its handles in one Filesystem.

    Critical sections:

    - `_gate` is held while a write enters the buffer and while the size changes, so that
      truncations and writes have an order.
    - `_commit_lock` is held through one commit. Commits of an inode follow each other in order, and
      a `setattr` under the lock runs between two commits.
    - The batch of a commit moves from `_runs` to `_committing` in one step. It leaves `_committing`
      in the step in which `on_commit` receives the new attributes. So each acknowledged byte is
      always either dirty here or in the database.
    - A commit runs in a task of its own: a cancelled caller does not interrupt it.
    - A commit waits for the rest of a split write(2) (`SplitWrite`), unless the caller knows that
      no write is in progress. So a crash normally leaves a whole write(2) or nothing.

    Bytes belong to the epoch they were written in. If it ends before their commit, the writer
    discards them and reports a loss: another session may have changed the file since.
    """

    def __init__(
        self,
        ino: Ino,
        write_path: WritePath,
        on_commit: Callable[[Attr, Commit], None],
        on_loss: Callable[[WrkfsError], None],
    ) -> None:
        self._ino = ino
        self._write_path = write_path
        self._on_commit = on_commit
        self._on_loss = on_loss
        self._runs: list[Run] = []
        self._committing: list[Run] = []
        self._append = False
        self._split = SplitWrite()
        self._budgeted = 0
        """Bytes of the dirty budget that `_runs` uses."""
        self._gate = asyncio.Lock()
        self._commit_lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._last_change = 0
        """Value of `WritePath.changes` at the last commit that was not durable."""
        self._mtime_ns = 0
        self._commit_started = False
        self._failure: WrkfsError | None = None
        self._new = False
        """True from `mark_new` to the first durable commit."""

    # -- dirty bytes --

    @property
    def dirty(self) -> bool:
        """True if bytes wait for a commit or are in one."""
        return bool(self._runs or self._committing)

    @property
    def appending(self) -> bool:
        """True if dirty bytes have no offset yet: the database assigns it at the commit."""
        return self._append and self.dirty

    @property
    def end(self) -> int:
        """Minimum size of the file after the commit of the dirty bytes."""
        if self._append:
            return 0
        return max((run.end for run in self._committing + self._runs), default=0)

    @property
    def amount(self) -> int:
        """Number of dirty bytes. Bytes that are in two runs count twice."""
        return sum(run.length for run in self._committing + self._runs)

    @property
    def mtime_ns(self) -> int:
        """Modification time that the dirty bytes will have."""
        return self._mtime_ns

    def overlay(self, start: int, end: int) -> list[tuple[int, bytes]]:
        """Return the dirty bytes within [start, end), oldest first."""
        if self._append:
            return []
        return [piece for run in self._committing + self._runs for piece in run.read(start, end)]

    # -- changes --

    @property
    def pending(self) -> bool:
        """True if the rest of a write(2) may follow."""
        return self._split.pending

    async def write(
        self, offset: int, data: BytesLike, *, append: bool, may_be_split: bool = True
    ) -> None:
        """Buffer bytes; waits while too much is dirty. Raises FileTooBig, or the error of `fail`.

        Without `may_be_split` the request is a whole write(2).
        """
        size = len(data)
        if offset < 0 or offset + size > MAX_FILE_SIZE:
            raise FileTooBig(f"a write of {size} bytes at offset {offset}")
        if size <= SLICE_MAX:
            await self._write(offset, data, append)
            if not may_be_split:
                self._split.end()
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
        is_rest = self._split.is_rest(offset)
        if is_rest:
            self._split.rest_arrives()
            self._write_path.budget.take(size)
        else:
            await self._split.before_write()
            await self._write_path.budget.acquire(size)
        try:
            async with self._gate:
                while self._must_commit_before(append):
                    await self.commit(durable=False, between_writes=True)
                while not self._write_path.ids.ready:
                    await self._write_path.attempt(self._write_path.ids.refill)
                if self._failure is not None:
                    raise self._failure
                self._buffer(0 if append else offset, data, append)
                self._split.record(offset, size)
        except BaseException:
            self._write_path.budget.release(size)
            if is_rest:
                self._split.end()
            raise
        self._budgeted += size

    async def commit(
        self,
        *,
        durable: bool,
        all_files: bool = True,
        all_sessions: bool = False,
        between_writes: bool = False,
    ) -> None:
        """Make all dirty bytes visible; with `durable` they also survive a crash.

        A durable commit covers every change that the Filesystem has answered, names included.
        Without `all_files` it covers only the bytes of this file. With `all_sessions` it also
        covers earlier changes of other sessions. Lost bytes are reported through `on_loss`; the
        method does not raise them. Pass `between_writes` if the kernel permits no write(2) during
        the call.
        """
        if between_writes:
            self._split.end()
        if self._new and durable:
            self._new = False
            self._write_path.expect_empty = not self.dirty and not self._last_change
        if self.dirty or (durable and (all_sessions or self._needs_sync(all_files))):
            await asyncio.shield(self._spawn(FLUSH_WAIT, durable, all_files, all_sessions))

    async def settle(self) -> None:
        """Commit appended bytes, so that they have an offset and size and reads are exact."""
        if self.appending:
            await self.commit(durable=False)

    @contextlib.asynccontextmanager
    async def resizing(self) -> AsyncIterator[None]:
        """Commit all dirty bytes before the body; writes wait until the body ends."""
        await self._split.wait(FLUSH_WAIT)
        async with self._gate:
            while self._runs:
                await self.commit(durable=False, between_writes=True)
            async with self._commit_lock:
                yield

    @contextlib.asynccontextmanager
    async def between_commits(self) -> AsyncIterator[None]:
        """Run the body between two commits; dirty bytes stay dirty.

        Only for SETATTR: the kernel permits no write(2) during it.
        """
        self._split.end()
        async with self._commit_lock:
            yield

    def mark_new(self, durable_until: int | None) -> None:
        """Record that the file was just created.

        `durable_until` is the value of `WritePath.changes` before a durable creation; None if the
        creation was not durable.
        """
        self._new = True
        if durable_until is None:
            self._write_path.note_change()
        else:
            self._write_path.note_durable(durable_until)

    def set_mtime(self, mtime_ns: int) -> None:
        """Set the modification time that the commit of earlier writes stores."""
        self._mtime_ns = mtime_ns

    def fail(self, error: WrkfsError) -> None:
        """Reject all further writes with `error`: this session has lost the file."""
        self._failure = error

    def discard(self, error: WrkfsError) -> None:
        """Drop dirty bytes and report the loss. A commit in progress reports its own outcome."""
        if self._runs:
            batch, budgeted = self._take_batch()
            self._free(batch, budgeted)
            self._write_path.give_up(batch)
            self._on_loss(error)

    # -- internal --

    def _needs_sync(self, all_files: bool) -> bool:
        """Return True if a crash could undo a change that a durable commit must cover."""
        return (
            self._write_path.changes if all_files else self._last_change
        ) > self._write_path.durable

    def _take_batch(self) -> tuple[list[Run], int]:
        """Empty the buffer; return the runs and the number of bytes they use of the budget."""
        batch, self._runs = self._runs, []
        budgeted, self._budgeted = self._budgeted, 0
        self._commit_started = False
        self._cancel_timer()
        return batch, budgeted

    def _free(self, batch: list[Run], budgeted: int) -> None:
        """Release the budget and cancel the uploads of runs that left the buffer."""
        self._write_path.budget.release(budgeted)
        for run in batch:
            for upload in run.uploads:
                upload.cancel()

    def _must_commit_before(self, append: bool) -> bool:
        """Return True if the dirty bytes must be committed before this write.

        Appended and positioned bytes are never dirty together, and the number of runs is bounded.
        """
        if self.dirty and self._append != append:
            return True
        return len(self._runs) >= 4 * MAX_RUNS and not self._split.pending

    def _buffer(self, offset: int, data: BytesLike, append: bool) -> None:
        """Copy bytes into the newest run that accepts them. No await: the caller has the gate."""
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
            target = Run(offset, self._write_path.ids.take(), self._write_path.ids.epoch)
            self._runs.append(target)
        target.write(offset, data)
        self._seal_full(target)
        if len(self._runs) >= MAX_RUNS and not self._commit_started:
            self._start_commit()
        elif self._timer is None and not self._commit_started:
            self._timer = asyncio.get_running_loop().call_later(COMMIT_DELAY, self._start_commit)

    def _seal_full(self, run: Run) -> None:
        while len(run.uploads) < run.length // BLOCK_SIZE:
            self._seal(run)

    def _seal(self, run: Run) -> None:
        index = len(run.uploads)
        upload = self._upload_block(run.slice_id, index, run.blocks[index])
        run.uploads.append(asyncio.create_task(upload))

    async def _upload_block(self, slice_id: SliceId, index: int, block: bytearray) -> bytes:
        """Store one block; return its checksums."""
        async with self._write_path.upload_slot():
            checksums = sums(block)
            await self._write_path.blocks.put(
                block_key(self._write_path.prefix, slice_id, index), block
            )
            return checksums

    def _start_commit(self) -> None:
        """Start a commit in the background."""
        self._cancel_timer()
        self._commit_started = True
        self._spawn(REST_WAIT)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _spawn(
        self,
        patience: float,
        durable: bool = False,
        all_files: bool = False,
        all_sessions: bool = False,
    ) -> asyncio.Task[None]:
        task = asyncio.create_task(self._commit(patience, durable, all_files, all_sessions))
        self._write_path.tasks.add(task)
        task.add_done_callback(self._write_path.tasks.discard)
        return task

    async def _commit(
        self, patience: float, durable: bool, all_files: bool, all_sessions: bool
    ) -> None:
        async with self._commit_lock:
            await self._split.wait(patience)
            self._cancel_timer()
            until = self._write_path.changes
            try:
                if self._runs:
                    await self._commit_runs(durable)
                elif durable and (all_sessions or self._needs_sync(all_files)):
                    await self._write_path.sync_all()
                    return
                else:
                    return
            except WrkfsError as error:
                self._on_loss(error)
                return
            except BaseException as error:
                self._on_loss(StorageError(type(error).__name__))
                raise
            if durable:
                self._write_path.note_durable(until)
            else:
                self._last_change = self._write_path.note_change()

    async def _commit_runs(self, durable: bool) -> None:
        batch, budgeted = self._take_batch()
        self._committing = batch
        try:
            self._on_commit(*await self._commit_batch(batch, durable))
        except BaseException:
            self._write_path.give_up(batch)
            raise
        finally:
            self._committing = []
            self._free(batch, budgeted)

    async def _commit_batch(self, batch: list[Run], durable: bool) -> tuple[Attr, Commit]:
        """Upload and commit. Raises Fenced for bytes of an ended epoch, or the error of `fail`."""
        self._check(batch)
        extents = await self._upload(batch)
        self._check(batch)
        epoch = self._write_path.meta.epoch
        commit = Commit(self._ino, extents, self._append, durable, self._mtime_ns)
        try:
            return await self._write_path.meta.commit(commit), commit
        except Fenced:
            await self._write_path.recover(epoch)
            raise

    def _check(self, batch: list[Run]) -> None:
        if self._failure is not None:
            raise self._failure
        if any(run.epoch != self._write_path.meta.epoch for run in batch):
            raise Fenced(DISCARDED)

    async def _upload(self, batch: list[Run]) -> tuple[Extent, ...]:
        """Finish all uploads. Slices of up to INLINE_MAX bytes go into the commit instead."""
        for run in batch:
            if run.length > INLINE_MAX:
                while len(run.uploads) < len(run.blocks):
                    self._seal(run)
        uploads = [upload for run in batch for upload in run.uploads]
        if uploads:
            # The first failure ends the batch: uploads that wait for a slot would fail even later.
            ended, _ = await asyncio.wait(uploads, return_when=asyncio.FIRST_EXCEPTION)
            for upload in ended:
                upload.result()
        return tuple(_extent(run) for run in batch)


def _extent(run: Run) -> Extent:
    if not run.uploads:
        return Extent(run.pos, run.slice_id, run.length, b"", bytes(run.blocks[0]))
    checksums = b"".join(upload.result() for upload in run.uploads)
    return Extent(run.pos, run.slice_id, run.length, checksums, None)
