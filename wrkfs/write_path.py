"""State that the writers of one Filesystem share: slice ids, memory bound, durability, epoch."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from wrkfs.data.retry import DEADLINE
from wrkfs.dirty import DirtyBudget
from wrkfs.errors import Fenced, Unavailable, WrkfsError
from wrkfs.types import SliceId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from wrkfs.data.interface import BlockStore
    from wrkfs.dirty import Run
    from wrkfs.meta.interface.files import FileStore

T = TypeVar("T")

UPLOADS = 12
"""Maximum number of concurrent PUTs of one Filesystem."""
CLOSE_DEADLINE = 2.0
"""Maximum number of seconds that `drop_ranges` takes."""
SLICE_RANGE = 16
"""Number of slice ids in the first reservation; each further one doubles it, up to
`SLICE_RANGE_MAX`. After a session is killed, garbage collection deletes 64 possible objects of each
unused id: for 1,024 ids that is 8 s of the embedded store's processor time."""
SLICE_RANGE_MAX = 1024
DISCARDED = "the session expired before these bytes were committed; write them again"
"""Error text for bytes whose epoch ended before they were committed."""


class SliceIds:
    """Slice ids of this session, reserved in ranges.

    Critical section: `refill` holds a lock across the reservation; `take` does not wait.
    """

    def __init__(self, meta: FileStore) -> None:
        self._meta = meta
        self._epoch = 0
        self._next = 0
        self._end = 0
        self._size = SLICE_RANGE
        self._lock = asyncio.Lock()

    @property
    def epoch(self) -> int:
        """Epoch that reserved the ids. After its end, collection may delete their objects."""
        return self._epoch

    @property
    def ready(self) -> bool:
        """True if `take` may be called."""
        return self._next < self._end and self._epoch == self._meta.epoch

    def take(self) -> SliceId:
        """Return the next id. Call it only if `ready`, with no await in between."""
        slice_id = SliceId(self._next)
        self._next += 1
        return slice_id

    async def refill(self) -> None:
        """Reserve a range if no id is left."""
        async with self._lock:
            if not self.ready:
                epoch = self._meta.epoch
                self._next = await self._meta.reserve_slices(self._size)
                self._end = self._next + self._size
                self._epoch = epoch
                self._size = min(2 * self._size, SLICE_RANGE_MAX)


class Rejoin(Protocol):
    """Recovery after the database fenced the session."""

    async def __call__(self, epoch: int) -> int:
        """Register an epoch after `epoch`, unless one exists; return it when all files are open.

        Bytes that were written under `epoch` and not committed are discarded. Raises Unavailable if
        some files could not be opened; the next call continues.
        """
        ...


@dataclass(slots=True)
class WritePath:
    """State that all writers of one Filesystem share."""

    meta: FileStore
    blocks: BlockStore
    prefix: str
    ids: SliceIds
    rejoin: Rejoin
    budget: DirtyBudget = field(default_factory=DirtyBudget)
    uploads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(UPLOADS))
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    joined: int = 0
    """Epoch in which all files are open. If it is not the store's epoch, some are still closed."""
    durable_close: bool = True
    """True if a close makes its bytes durable. Otherwise they are in the journal of this host."""
    changes: int = 0
    """Number of answered changes of this session."""
    durable: int = 0
    """Number of those changes that survive a crash of the database."""

    expect_empty: bool = False
    """True if the last new file was closed empty, so that the next one probably is too. A file that
    is created durably needs no `sync` when it is closed empty."""
    queued_uploads: int = 0
    """Number of uploads that wait for a slot."""
    running_uploads: int = 0
    """Number of uploads in progress."""
    last_upload: float = 0.0
    """Time of the last successful upload, on the loop's clock."""
    abandoned: dict[SliceId, int] = field(default_factory=dict)
    """Sizes of slices that may have objects and are in no file; `give_up` has not reported them."""

    def give_up(self, runs: Sequence[Run]) -> None:
        """Report, in the background, that these runs will not be committed."""
        runs = [run for run in runs if run.uploads]
        if runs:
            task = asyncio.create_task(self._give_up(runs))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _give_up(self, runs: Sequence[Run]) -> None:
        # An object that is stored after its deletion would stay forever.
        uploads = [upload for run in runs for upload in run.uploads]
        await asyncio.gather(*uploads, return_exceptions=True)
        await self.give_up_slices({run.slice_id: run.length for run in runs})

    async def give_up_slices(self, slices: Mapping[SliceId, int]) -> None:
        """Report that slices, with their sizes, will not be committed. Their uploads have ended.

        After an error, the next report includes them. Collection also finds them when the session
        has ended.
        """
        self.abandoned.update(slices)
        with contextlib.suppress(WrkfsError):
            await self._report()

    async def _report(self) -> None:
        slices = dict(self.abandoned)
        if slices:
            await self.meta.give_up(slices)
            for slice_id in slices:
                self.abandoned.pop(slice_id, None)

    async def drop_ranges(self) -> None:
        """Drop the unused ids at the end of the session, after all commits.

        If this fails, garbage collection does the work later.
        """
        with contextlib.suppress(WrkfsError, TimeoutError):
            async with asyncio.timeout(CLOSE_DEADLINE):
                await self._report()
                await self.meta.drop_ranges()

    @contextlib.asynccontextmanager
    async def upload_slot(self) -> AsyncIterator[None]:
        """Return a context that is one of the concurrent uploads; its body is the upload.

        Raises Unavailable if no upload succeeds for a whole deadline. Then the store is gone, and
        a longer wait would only delay the error.
        """
        loop = asyncio.get_running_loop()
        self.queued_uploads += 1
        try:
            await self._take_slot()
        finally:
            self.queued_uploads -= 1
        self.running_uploads += 1
        try:
            yield
            self.last_upload = loop.time()
        finally:
            self.running_uploads -= 1
            self.uploads.release()

    async def _take_slot(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            start = loop.time()
            try:
                async with asyncio.timeout(DEADLINE):
                    await self.uploads.acquire()
                return
            except TimeoutError:
                if self.last_upload <= start:
                    raise Unavailable(
                        f"the object store has accepted no upload for {DEADLINE:g} s"
                    ) from None

    def note_change(self) -> int:
        """Count a change that is answered and not durable; return the new count.

        Call it after the answer: a durable step that began before the answer does not cover it.
        """
        self.changes += 1
        return self.changes

    def note_durable(self, until: int) -> None:
        """Record the success of a durable step that began when `changes` was `until`."""
        self.durable = max(self.durable, until)

    async def sync_all(self) -> None:
        """Make every answered change durable, of this session and of all others."""
        until = self.changes
        await self.attempt(self.meta.sync)
        self.note_durable(until)

    async def attempt(self, call: Callable[[], Awaitable[T]]) -> tuple[T, int]:
        """Make a call of the store; return its answer and the epoch it began in.

        A call that raised Fenced changed nothing, so it is repeated in a new epoch. Doubtful
        reaches the caller: the outcome of a call that broke before the fence is unknown.
        """
        if self.joined != self.meta.epoch:
            await self.recover(self.joined)
        epoch = self.meta.epoch
        try:
            return await call(), epoch
        except Fenced:
            await self.recover(epoch)
        epoch = self.meta.epoch
        return await call(), epoch

    async def recover(self, epoch: int) -> None:
        """Continue in a new epoch after `epoch` was fenced (`Rejoin`)."""
        self.joined = await self.rejoin(epoch)
