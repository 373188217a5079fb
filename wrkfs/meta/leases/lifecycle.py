"""The life of the leases: the session takes them, other sessions recall them, crashes void them.

How long a lease lasts: `wrkfs.meta.interface.lease_times`.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from wrkfs.errors import Doubtful, StorageError, Unavailable, WrkfsError
from wrkfs.meta.leases.unrecorded_opens import UnrecordedOpens
from wrkfs.meta.postgres.sessions import boottime
from wrkfs.types import Ino

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence

    from wrkfs.meta.interface.leases import LeaseStore
    from wrkfs.meta.leases.cached_directory import Change, Key
    from wrkfs.meta.leases.lease_table import LeaseTable
    from wrkfs.types import Attr

RETAKE = 1.0
"""Seconds after a recall, or a refusal, before the session asks for the lease again."""
_UNKNOWN = (Unavailable, Doubtful, StorageError)
"""Errors after which it is unknown whether a change took effect."""


async def _nothing(_directories: Sequence[Ino]) -> None:
    return


class LeaseLifecycle:
    """Takes leases, answers recalls, and gives leases back once nothing relies on them.

    Critical sections: a lease is in the table from the answer of `take_lease` until it is recalled.
    Before the session gives it back, the kernel drops everything that relies on it (`on_drop`).
    Meanwhile (`_leaving`) the session does not take the lease again. A second recall waits for the
    end of the first one (`_again`). Otherwise the answer to the second recall could end a lease
    that the session took later.
    """

    def __init__(self, inner: LeaseStore, table: LeaseTable) -> None:
        self.opens = UnrecordedOpens(inner)
        self.voids = 0
        """Number of times that all leases became void. Earlier requests for leases are void too."""
        self.before_return: Callable[[Sequence[Ino]], Awaitable[None]] = _nothing
        """Awaited with directories before their leases are given back."""
        self.removals = 0
        """Number of times that leases of directories with unknown numbers may have ended."""
        self.on_recall: Callable[[Sequence[Ino]], None] = lambda _: None
        """Called with the directories that another session recalls."""
        self._inner = inner
        self._table = table
        self._not_before: OrderedDict[Ino, float] = OrderedDict()
        self._doubts = 0
        self._taking: dict[Ino, asyncio.Future[None]] = {}
        self._listeners: list[set[Ino]] = []
        self._leaving: dict[Ino, asyncio.Task[None]] = {}
        self._again: set[Ino] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._drops: set[asyncio.Task[None]] = set()
        table.on_evict = self._leave
        inner.watch_leases(self._recalled, self.void, self._forget_all, lambda: self.opens.all)

    def start(self) -> None:
        """Start the background work; the session must have started."""
        self.opens.start()

    async def close(self) -> None:
        """Stop all background work. The leases end with the session."""
        await self.opens.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def reset(self) -> None:
        """Drop leases and open files: the session registers again."""
        self.opens.clear()
        self.void()

    # -- taking leases --

    async def take(self, directory: Ino) -> None:
        """Ask for a lease, unless the session has one or the store refused it just now."""
        if directory in self._table.directories or directory in self._leaving:
            return
        if self._doubts or not self._inner.can_lease:
            return
        until = self._not_before.get(directory)
        if until is not None:
            if time.monotonic() < until:
                return
            del self._not_before[directory]
        pending = self._taking.get(directory)
        if pending is not None:
            await asyncio.shield(pending)
            return
        pending = self._taking[directory] = asyncio.get_running_loop().create_future()
        try:
            voids = self.voids
            with self.listening() as recalled:
                granted = await self._inner.take_lease(directory)
            if not granted:
                self._postpone(directory)
            elif directory in self._table.directories:
                return  # a call that read ahead has taken the lease, too
            elif voids == self.voids and directory not in recalled:
                self._table.adopt(directory)
            else:
                self.give_back([directory])
        finally:
            del self._taking[directory]
            pending.set_result(None)

    @contextmanager
    def listening(self) -> Iterator[set[Ino]]:
        """Collect the directories that are recalled during the body.

        The answer that grants a lease may arrive after the recall of that lease.
        """
        recalled: set[Ino] = set()
        self._listeners.append(recalled)
        try:
            yield recalled
        finally:
            self._listeners = [listener for listener in self._listeners if listener is not recalled]

    def adopt_created(self, attr: Attr, voids: int, recalled: set[Ino]) -> None:
        """Take over the lease that comes with a new directory: see `wrkfs.make`.

        `voids` is the number from before the call, `recalled` from `listening` around it. Gives the
        lease back if it has been recalled or is void.
        """
        if (
            voids == self.voids
            and not self._doubts
            and self._inner.can_lease
            and boottime() < self._inner.trusted_until
            and attr.ino not in recalled
        ):
            cached = self._table.adopt(attr.ino)
            cached.complete = True
            cached.attr = attr
        else:
            self.give_back([attr.ino])

    def moment(self, recalled: set[Ino]) -> tuple[int, int]:
        """Return the moment before a call that takes leases on directories that it chooses.

        `recalled` comes from `listening` around the call. Returns of leases that are under way may
        also end the new leases.
        """
        recalled.update(self._leaving)
        return self.voids, self.removals

    def adopt_ahead(
        self, directories: Sequence[Ino], moment: tuple[int, int], recalled: set[Ino]
    ) -> None:
        """Take over leases that a call took ahead of the reader: see `moment`.

        Gives back those that have been recalled since, or may have ended.
        """
        valid = moment == (self.voids, self.removals) and not self._doubts
        refused = []
        for directory in directories:
            if directory in self._table.directories:
                continue
            if valid and directory not in recalled and directory not in self._leaving:
                self._table.adopt(directory)
            else:
                refused.append(directory)
        self.give_back(refused)

    def _postpone(self, directory: Ino) -> None:
        now = time.monotonic()
        self._not_before[directory] = now + RETAKE
        self._not_before.move_to_end(directory)
        while next(iter(self._not_before.values())) <= now:
            self._not_before.popitem(last=False)

    # -- recalls and giving back --

    def _recalled(self, directories: Sequence[Ino]) -> None:
        """Give recalled leases back: another session waits for them.

        Negative numbers are inodes whose access times have moved.
        """
        touched = {Ino(-ino) for ino in directories if ino < 0}
        if touched:
            self._touched(touched)
            directories = [ino for ino in directories if ino > 0]
        self._table.recalls += len(directories)
        for listener in self._listeners:
            listener.update(directories)
        for directory in directories:
            self._postpone(directory)
        self.on_recall(directories)
        self.give_back(directories)

    def _touched(self, inos: set[Ino]) -> None:
        """Drop the attributes of inodes whose access times another session has moved."""
        self._table.changes.invalidate_reads()
        self._table.changes.invalidate_answers()
        for ino in inos:
            self._table.drop_attr(ino)
        self._spawn(self._table.on_drop((), inos))

    def give_back(self, directories: Iterable[Ino]) -> None:
        """Drop directories and return their leases; repeat a return that is already under way."""
        inos: set[Ino] = set()
        leaving = []
        for directory in directories:
            if directory in self._leaving:
                self._again.add(directory)
                continue
            inos |= self._table.pop(directory)
            leaving.append(directory)
        if leaving:
            self._leave(leaving, inos)

    def give_back_all(self) -> None:
        """Drop every directory and give all leases back."""
        self.removals += 1
        self.give_back(list(self._table.directories))
        self._table.clear()

    def give_back_unplaced(self) -> None:
        """Drop every directory whose parent is unknown.

        The session removed a directory without knowing its number. That directory is one of these,
        and its lease ended with the removal.
        """
        self.removals += 1
        unplaced = [ino for ino, cached in self._table.directories.items() if cached.attr is None]
        for listener in self._listeners:
            listener.update(self._taking)
        self.give_back(unplaced)

    def remove(self, directory: Ino) -> set[Ino]:
        """Drop a directory that this session removed, and whose lease ended with it.

        Returns the inodes whose attributes the kernel may rely on.
        """
        for listener in self._listeners:
            listener.add(directory)  # the answer that grants its lease may still be on its way
        return self._table.pop(directory)

    def _leave(self, directories: list[Ino], inos: set[Ino]) -> None:
        for listener in self._listeners:
            listener.update(directories)
        drop = self._spawn(self._table.on_drop(directories, inos))
        self._drops.add(drop)
        drop.add_done_callback(self._drops.discard)
        task = self._spawn(self._surrender(directories, drop))
        self._leaving.update(dict.fromkeys(directories, task))

    async def wait_dropped(self) -> None:
        """Wait until the kernel relies on nothing that the table has dropped."""
        if self._drops:
            await asyncio.wait(set(self._drops))

    async def _surrender(self, directories: list[Ino], drop: Awaitable[None]) -> None:
        """Give leases back once the kernel no longer relies on them.

        By then every open file is either covered by a lease or recorded in the database.
        """
        try:
            uncovered = [ino for ino in self.opens.all if ino not in self._table.homes]
            await asyncio.gather(self.opens.sustain(uncovered), drop)
            await self.before_return(directories)
            await self._inner.give_back(directories)
        finally:
            for directory in directories:
                del self._leaving[directory]
            again = self._again.intersection(directories)
            self._again -= again
        if again:
            self.give_back(again)

    # -- own changes --

    @asynccontextmanager
    async def changing(self, *keys: Key, is_open_ended: bool = False) -> AsyncIterator[Change]:
        """Run a change by this session in the body; see `LeaseTable.begin_change`."""
        change = self._table.begin_change(*keys, is_open_ended=is_open_ended)
        try:
            yield change
        except BaseException as error:
            if not isinstance(error, WrkfsError) or isinstance(error, _UNKNOWN):
                await self._doubt()
            raise
        finally:
            self._table.end_change(change)

    async def uncover(self, *directories: Ino) -> None:
        """Make the kernel drop all attributes that rely on these leases.

        Call this before an inode leaves the directories: its new place may have no lease.
        """
        inos: set[Ino] = set()
        for directory in directories:
            cached = self._table.directories.get(directory)
            if cached is not None:
                inos |= cached.kernel_inodes
                cached.kernel_inodes = set()
        # The kernel may still rely on attributes in directories that were recalled just now.
        await self.wait_dropped()
        await self._table.on_drop((), inos)

    async def uncover_inode(self, ino: Ino) -> None:
        """Make the kernel drop the attributes of an inode that will lose its lease."""
        homes = [
            directory
            for directory, cached in self._table.directories.items()
            if ino in cached.kernel_inodes
        ]
        if homes or self._drops:
            await self.uncover(*homes)

    async def _doubt(self) -> None:
        """Return all leases after a change whose outcome is unknown.

        A late copy of the change may still reach the database. That copy recalls no lease of this
        session, and it may affect inodes other than those that the change was meant for. So the
        session takes no lease until the copy can no longer arrive. Returns when the kernel relies
        on nothing.
        """
        self._doubts += 1
        self.voids += 1
        if self._doubts == 1:
            self._spawn(self._end_doubts())
        self.give_back_all()
        await self.wait_dropped()

    async def _end_doubts(self) -> None:
        """Make the database reject late copies of changes: see `wrkfs.give_up`.

        No fixed wait suffices: the kernel retransmits for minutes, even after the connection
        has been closed.
        """
        while self._doubts:
            doubts = self._doubts
            try:
                await self._inner.give_up({})
            except WrkfsError:
                await asyncio.sleep(RETAKE)
                continue
            if doubts == self._doubts:
                self._doubts = 0

    # -- the end of all leases --

    def void(self) -> None:
        """Drop everything: all leases are gone, or the session may have missed recalls."""
        self.voids += 1
        # The database may still have the leases, and recalls of them would go unanswered.
        self.give_back_all()
        self._spawn(self._record_opens())

    async def _forget_all(self) -> None:
        """Drop everything; returns when the cache is empty and the kernel relies on nothing."""
        self.void()
        await self.wait_dropped()

    async def _record_opens(self) -> None:
        """Record every open file in the database: leases no longer protect them."""
        await self.opens.sustain(self.opens.all)

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                await work
            except (WrkfsError, asyncio.CancelledError):
                # If a lease could not be given back, the other session waits until it expires.
                return

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
