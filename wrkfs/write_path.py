"""What the writers of one Filesystem share: slice ids, the memory bound, durability, rejoining."""

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
"""PUTs in flight of one Filesystem."""
CLOSE_DEADLINE = 2.0
"""Seconds for telling the slice ids that were given up, at the end."""
SLICE_RANGE = 16
"""Slice ids reserved at first; then twice as many each time, up to `SLICE_RANGE_MAX`. Collection
deletes all 64 objects that each may have had of those that a killed session did not use: for 1,024
ids that is 8 s of the embedded store's processor time."""
SLICE_RANGE_MAX = 1024
REFUSED = "written before the session was cut off"
"""What is said of bytes whose epoch ended before they were committed."""


class SliceIds:
    """Slice ids of this session, reserved in ranges.

    Critical section: `refill` holds a lock across the reservation; `take` never waits.
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
                self._next = await self._meta.reserve_slices(self._size)
                self._end = self._next + self._size
                self._epoch = epoch
                self._size = min(2 * self._size, SLICE_RANGE_MAX)


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

    meta: FileStore
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

    makes_empty: bool = False
    """Whether the last file that was made was closed empty. The next one is likely to be as well:
    made durably at once, it needs no `sync` when it is closed."""
    stored_at: float = 0.0
    """When an upload succeeded last, on the loop's clock."""
    given_up: dict[SliceId, int] = field(default_factory=dict)
    """Slices, with their sizes, that may have objects and are in no file; not yet told."""

    def give_up(self, runs: Sequence[Run]) -> None:
        """These runs will not be committed: their objects are garbage, told in the background."""
        stored = [run for run in runs if run.puts]
        if stored:
            task = asyncio.create_task(self._tell_given_up(stored))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _tell_given_up(self, runs: Sequence[Run]) -> None:
        # An object that is stored after it was deleted would stay for ever.
        await asyncio.gather(*(put for run in runs for put in run.puts), return_exceptions=True)
        await self.give_up_slices({run.slice_id: run.length for run in runs})

    async def give_up_slices(self, slices: Mapping[SliceId, int]) -> None:
        """These ids, with their sizes, will not be committed; nothing is being stored under them.

        What cannot be told now is told with the next ones, or found when the session has ended.
        """
        self.given_up.update(slices)
        with contextlib.suppress(WrkfsError):
            await self._report()

    async def _report(self) -> None:
        told = dict(self.given_up)
        if told:
            await self.meta.give_up(told)
            for slice_id in told:
                self.given_up.pop(slice_id, None)

    async def drop_ranges(self) -> None:
        """The end, after all commits: nobody needs to look for ids of this session any more.

        What fails here is done by garbage collection later.
        """
        with contextlib.suppress(WrkfsError, TimeoutError):
            async with asyncio.timeout(CLOSE_DEADLINE):
                await self._report()
                await self.meta.drop_ranges()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """One of the uploads that may be in flight; the body is the upload.

        Raises Unavailable when a whole deadline passes without one that succeeded: the store is
        gone, and who waits for a turn would only learn it later than those who have one.
        """
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                async with asyncio.timeout(DEADLINE):
                    await self.uploads.acquire()
                break
            except TimeoutError:
                if self.stored_at <= began:
                    raise Unavailable(f"nothing could be stored for {DEADLINE:g} s") from None
        try:
            yield
            self.stored_at = loop.time()
        finally:
            self.uploads.release()

    def note_change(self) -> int:
        """A change has been answered that only a durable step makes safe; the new count.

        Never noted before the answer: a durable step in between would not cover it.
        """
        self.changes += 1
        return self.changes

    def note_durable(self, until: int) -> None:
        """A durable step succeeded that began when `changes` was `until`."""
        self.durable = max(self.durable, until)

    async def sync_all(self) -> None:
        """What any session was answered survives a crash: it may be another one's work."""
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
