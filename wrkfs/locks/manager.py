"""Advisory locks of one session, on files that are open in it.

The store keeps the locks of all sessions. While it delegates a file to this session, the session
decides alone, and a lock costs no round trip. The rules stand in functions/6_locks.sql.

An unlock publishes: bytes that were written before it are committed before another session can get
the lock. Under a delegation that happens when another session asks for the file. A lock that the
store grants comes with the version of the file. If the version has changed since the session last
had a lock, the kernel drops its pages of the file (`on_change`) before the program continues.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from wrkfs.errors import Interrupted, NoLocks, WouldBlock, WrkfsError
from wrkfs.locks.file_locks import FileLocks, unlock_all
from wrkfs.meta.lock_rules import check_request, conflict
from wrkfs.types import LockMode, LockWait

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
    from typing import TypeVar

    from wrkfs.handle import FileHandle, OpenFile
    from wrkfs.meta.interface.locks import LockStore
    from wrkfs.types import HeldLock, Ino, ListedLock, LockAnswer, LockOwner, LockRequest
    from wrkfs.write_path import WritePath

    T = TypeVar("T")

LOCKS_MAX = 10_000
"""Maximum number of locks of one session; further ones fail with ENOLCK."""
WAITS_MAX = 500
"""Maximum number of requests that wait. Each one occupies a worker of the mount."""
POLL = 1.0
"""Seconds after which a waiting request is repeated without a wake-up."""
IDLE = 5.0
"""Seconds for which a delegation stays after the last close of its file."""
REPEAT = 1.0
"""Seconds between two attempts to correct the store after an error."""
LOST = "the session lost its lock, and another host may have changed the file; close and reopen it"


class LockManager:
    """The locks of one session. Implements `LockClient`.

    Critical section: see `FileLocks.gate`. A request with a conflict under a delegation first gives
    the delegation back, so every wait is in the store, which finds deadlocks.
    """

    def __init__(
        self, store: LockStore, write_path: WritePath, files: Mapping[Ino, OpenFile]
    ) -> None:
        """`files` are the open files of the session."""
        self.on_change: Callable[[Ino], Awaitable[None]] | None = None
        """Awaited before a lock is granted on a file that another session has changed."""
        self._store = store
        self._write_path = write_path
        self._files = files
        self._locks: dict[Ino, FileLocks] = {}
        self._waits = 0
        self._ticket = 0
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._closed = False
        store.attach(self)

    async def close(self) -> None:
        """Stop the background work. The locks end with the session."""
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def count(self) -> int:
        """Number of locks that the session has."""
        return sum(len(state.held) for state in self._locks.values())

    async def listing(self, limit: int) -> list[ListedLock]:
        """Return locks and waits of all sessions (`LockStore.listing`)."""
        return await self._store.listing(limit)

    # -- requests --

    async def test(self, handle: FileHandle, request: LockRequest) -> tuple[HeldLock, bool] | None:
        """Return a lock that conflicts with the request, and whether this session has it."""
        check_request(request)
        handle.check_locks()
        state = self._locks.get(request.ino)
        if state is not None and state.delegated and self._store.can_decide:
            lock = conflict(state.held, request)
            return None if lock is None else (lock, True)
        return await self._store.test(request)

    async def set(
        self,
        handle: FileHandle,
        request: LockRequest,
        *,
        interrupted: asyncio.Event | None = None,
        is_process: bool = False,
    ) -> None:
        """Set or release a lock.

        With `interrupted` the request waits until it is granted or the event is set; then it raises
        Interrupted. Without it, it raises WouldBlock. `is_process`: see `LockWait`. Raises
        Deadlock, and NoLocks if there are too many locks or the handle has lost one.
        """
        check_request(request)
        if request.mode is LockMode.UNLOCK:
            await self._unlock(request)
            return
        handle.check_locks()
        if self.count >= LOCKS_MAX:
            raise NoLocks(f"this mount has {LOCKS_MAX} locks; release some first")
        state = self._locks.setdefault(request.ino, FileLocks(request.ino))
        state.users.setdefault(request.owner, set()).add(handle)
        state.requests += 1
        try:
            if interrupted is None:
                if not await self._request(handle, state, request, None):
                    raise WouldBlock("another owner has a conflicting lock")
            else:
                await self._wait(handle, state, request, interrupted, is_process)
        finally:
            state.requests -= 1
            self._forget(state)

    async def end_owner(self, ino: Ino, owner: LockOwner) -> None:
        """Release all locks of an owner on a file: it has closed one of its descriptors."""
        state = self._locks.get(ino)
        if state is not None and state.own(owner):
            await self._unlock(unlock_all(ino, owner))

    async def end_handle(self, handle: FileHandle) -> None:
        """Release what owners have through this handle only: it is closed.

        The bytes of the handle are committed.
        """
        state = self._locks.get(handle.ino)
        if state is None:
            return
        for owner in state.leave(handle):
            if state.own(owner):
                await self._unlock(unlock_all(handle.ino, owner))
        if state.delegated and handle.ino not in self._files:
            self._start(("idle", state.ino), partial(self._end_idle, state.ino))
        self._forget(state)

    async def _wait(
        self,
        handle: FileHandle,
        state: FileLocks,
        request: LockRequest,
        interrupted: asyncio.Event,
        is_process: bool,
    ) -> None:
        """Repeat a request until it is granted."""
        if self._waits >= WAITS_MAX:
            raise NoLocks(f"{WAITS_MAX} requests of this mount wait for locks already")
        self._waits += 1
        self._ticket += 1
        wait, woken, queued = LockWait(self._ticket, is_process), asyncio.Event(), False
        state.waits.add(woken)
        interrupt = asyncio.create_task(interrupted.wait())
        try:
            while True:
                woken.clear()
                queued = True
                if await self._request(handle, state, request, wait):
                    queued = False
                    return
                wake = asyncio.create_task(woken.wait())
                await asyncio.wait(
                    {wake, interrupt}, timeout=POLL, return_when=asyncio.FIRST_COMPLETED
                )
                wake.cancel()
                if interrupted.is_set():
                    raise Interrupted
        finally:
            interrupt.cancel()
            state.waits.discard(woken)
            self._waits -= 1
            if queued:
                self._start(("wait", wait.ticket), partial(self._cancel, wait.ticket))

    async def _request(
        self, handle: FileHandle, state: FileLocks, request: LockRequest, wait: LockWait | None
    ) -> bool:
        """Try once to get a lock. Return False if another owner is in the way."""
        async with state.gate:
            if state.delegated:
                if self._store.can_decide:
                    if conflict(state.held, request) is None:
                        state.apply(request)
                        return True
                    if wait is None:
                        state.apply_refusal(request)
                        return False
                await self._surrender(state)
            elif request.mode is LockMode.SHARED:
                await self._commit(state.ino)  # it may replace an exclusive lock
            while True:
                handle.check_locks()
                losses = state.losses
                answer = await self._call(state, lambda: self._store.set(request, wait))
                if losses == state.losses:
                    break
                # The session was fenced meanwhile. Its successor may have received the lock.
                if handle.has_lost_locks:
                    await self._call(state, lambda: self._store.give_back(state.ino, state.held))
            if not answer.granted:
                state.apply_refusal(request)
                return False
            state.apply(request)
            state.delegated = answer.delegated
            await self._follow(handle, state, answer)
            return True

    async def _unlock(self, request: LockRequest) -> None:
        if request.ino not in self._locks:
            return
        async with self._using(request.ino) as state:
            if not any(
                lock.first <= request.last and lock.last >= request.first
                for lock in state.own(request.owner)
            ):
                return
            if state.delegated and self._store.can_decide:
                state.apply(request)
                return
            await self._commit(state.ino)
            state.apply(request)
            if state.delegated:
                await self._surrender(state)
                return
            answer = await self._call(state, lambda: self._store.set(request, None))
            state.version = answer.version

    async def _follow(self, handle: FileHandle, state: FileLocks, answer: LockAnswer) -> None:
        """Make this host see what others wrote before they released the lock."""
        # A lower version misses changes of this session that the database does not have yet.
        before = handle.attr.version if state.version is None else state.version
        state.version = answer.version
        if answer.version > before and self.on_change is not None:
            await self.on_change(state.ino)

    # -- what the store calls --

    def on_recall(self, inos: Sequence[Ino]) -> None:
        for ino in inos:
            self._start(("recall", ino), partial(self._recalled, ino))

    def on_wake(self, inos: Sequence[Ino]) -> None:
        for ino in inos:
            state = self._locks.get(ino)
            for event in state.waits if state is not None else ():
                event.set()

    def on_silence(self) -> None:
        self.on_recall([ino for ino, state in self._locks.items() if state.delegated])
        self.on_wake(list(self._locks))

    def held(self) -> dict[Ino, Sequence[HeldLock]]:
        locks: dict[Ino, Sequence[HeldLock]] = {}
        for ino, state in self._locks.items():
            state.delegated = False
            if state.held:
                locks[ino] = state.held
        return locks

    def on_loss(self, inos: Iterable[Ino]) -> None:
        for ino in inos:
            state = self._locks.get(ino)
            if state is None:
                continue
            losers = state.lose()
            for handle in losers:
                handle.lose_locks(NoLocks(LOST))
            file = self._files.get(ino)
            if losers and file is not None:
                file.writer.discard(NoLocks(LOST))

    def lose_all(self) -> None:
        """Record that the session was fenced: its locks are gone."""
        self.on_loss(list(self._locks))

    # -- internal --

    @asynccontextmanager
    async def _using(self, ino: Ino) -> AsyncIterator[FileLocks]:
        """Return a context with the state of a file and its gate."""
        state = self._locks.setdefault(ino, FileLocks(ino))
        state.requests += 1
        try:
            async with state.gate:
                yield state
        finally:
            state.requests -= 1
            self._forget(state)

    async def _recalled(self, ino: Ino) -> None:
        async with self._using(ino) as state:
            await self._surrender(state)

    async def _end_idle(self, ino: Ino) -> None:
        await asyncio.sleep(IDLE)
        if ino not in self._files and ino in self._locks:
            await self._recalled(ino)

    async def _surrender(self, state: FileLocks) -> None:
        """Give the delegation back, with all locks. The caller has the gate."""
        await self._commit(state.ino)
        state.delegated = False
        losses = state.losses
        version = await self._call(state, lambda: self._store.give_back(state.ino, state.held))
        if losses == state.losses:
            state.version = version

    async def _commit(self, ino: Ino) -> None:
        """Make the bytes that this session has written visible to others."""
        file = self._files.get(ino)
        if file is not None and file.writer.dirty:
            await file.writer.commit(durable=False, between_writes=True)

    async def _call(self, state: FileLocks, call: Callable[[], Awaitable[T]]) -> T:
        """Call the store. After an error it may have other locks than this session knows."""
        try:
            return (await asyncio.shield(self._write_path.attempt(call)))[0]
        except (WrkfsError, asyncio.CancelledError) as error:
            if not isinstance(error, WrkfsError) or error.errno == WrkfsError.errno:
                self._start(("restate", state.ino), partial(self._restate, state.ino))
            raise

    async def _restate(self, ino: Ino) -> None:
        """State the locks of a file until the store has accepted them."""
        while True:
            await asyncio.sleep(REPEAT)
            with contextlib.suppress(WrkfsError):
                async with self._using(ino) as state:
                    state.delegated = False
                    give_back = partial(self._store.give_back, ino, state.held)
                    await self._write_path.attempt(give_back)
                return

    async def _cancel(self, ticket: int) -> None:
        await self._write_path.attempt(lambda: self._store.cancel(ticket))

    def _forget(self, state: FileLocks) -> None:
        if state.is_unused and not state.users and self._locks.get(state.ino) is state:
            del self._locks[state.ino]

    def _start(self, key: object, work: Callable[[], Awaitable[None]]) -> None:
        """Run work in the background, unless the same work is already running."""
        if key in self._tasks or self._closed:
            return

        async def run() -> None:
            try:
                with contextlib.suppress(WrkfsError):
                    await work()
            finally:
                del self._tasks[key]

        self._tasks[key] = asyncio.create_task(run(), name="wrkfs locks")
