"""Advisory locks in memory, with the rules of functions/6_locks.sql."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wrkfs.errors import Deadlock, Fenced
from wrkfs.meta import lock_rules
from wrkfs.types import Ino, ListedLock, LockAnswer, LockMode, LockOwner, LockSpace, SessionId

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wrkfs.meta.interface.locks import LockClient
    from wrkfs.types import HeldLock, LockRequest, LockWait

SHARED_FOR = 1.0
"""Seconds for which a file is not delegated after a second session has used its locks."""
SEEN_FOR = 2.0
"""Seconds for which a waiting request has its place in the queue after its last repetition."""

NOBODY = SessionId(0)
PAUSE = 0.001
"""Seconds between two attempts while another session gives its delegation back."""


@dataclass(slots=True)
class Waiter:
    """A request that waits; `since` is its place in the queue, `seen` its last repetition."""

    request: LockRequest
    is_process: bool
    since: int
    seen: float


@dataclass(slots=True)
class LockedFile:
    """The locks of all sessions on one file."""

    held: defaultdict[SessionId, list[HeldLock]] = field(default_factory=lambda: defaultdict(list))
    delegate: SessionId = NOBODY
    last: SessionId = NOBODY
    shared_at: float = float("-inf")


class LockTable:
    """The locks of one volume."""

    def __init__(self) -> None:
        self.files: defaultdict[Ino, LockedFile] = defaultdict(LockedFile)
        self.waiters: dict[tuple[SessionId, int], Waiter] = {}
        self.clients: dict[SessionId, LockClient] = {}
        self._turn = 0

    def enter(self, session: SessionId, ino: Ino) -> bool:
        """True if the session may continue: no other one has the delegation."""
        file = self.files[ino]
        if file.last not in (session, 0):
            file.shared_at = time.monotonic()
        file.last = session
        return self.recall(session, ino)

    def recall(self, session: SessionId, ino: Ino) -> bool:
        """True if no other session has the delegation; else asks that session for it."""
        file = self.files[ino]
        if file.delegate in (0, session):
            return True
        client = self.clients.get(file.delegate)
        if client is None:
            file.delegate = NOBODY
            return True
        client.on_recall([ino])
        return False

    def conflict(
        self, session: SessionId, request: LockRequest
    ) -> tuple[SessionId, HeldLock] | None:
        """The first lock of another owner that is in the way, and its session."""
        found = [
            (lock.first, holder, lock)
            for holder, locks in self.files[request.ino].held.items()
            for lock in locks
            if lock_rules.conflicts(
                lock if holder == session else replace(lock, owner=_stranger(lock)), request
            )
        ]
        return min(found, key=lambda one: one[:2])[1:] if found else None

    def must_queue(self, session: SessionId, wait: LockWait, request: LockRequest) -> bool:
        """True if an earlier request that conflicts waits too."""
        own = lock_rules.of_owner(self.files[request.ino].held[session], request.owner)
        if own:
            return False
        mine = self.waiters.get((session, wait.ticket))
        now = time.monotonic()
        return any(
            waiter.request.ino == request.ino
            and waiter.request.owner.space is request.owner.space
            and (holder, waiter.request.owner) != (session, request.owner)
            and LockMode.EXCLUSIVE in (waiter.request.mode, request.mode)
            and waiter.request.first <= request.last
            and waiter.request.last >= request.first
            and waiter.seen > now - SEEN_FOR
            and (mine is None or waiter.since < mine.since)
            for (holder, _), waiter in self.waiters.items()
        )

    def queue(self, session: SessionId, wait: LockWait, request: LockRequest) -> None:
        """Adds or repeats a waiting request. Deadlock."""
        key = (session, wait.ticket)
        if wait.is_process and self._closes_circle(session, request):
            self.waiters.pop(key, None)
            raise Deadlock
        self._turn += 1
        since = self.waiters[key].since if key in self.waiters else self._turn
        self.waiters[key] = Waiter(request, wait.is_process, since, time.monotonic())

    def _closes_circle(self, session: SessionId, request: LockRequest) -> bool:
        start = (session, request.owner)
        pending, seen = self._blockers(session, request), set[tuple[SessionId, LockOwner]]()
        while pending:
            one = pending.pop()
            if one == start:
                return True
            if one in seen:
                continue
            seen.add(one)
            for (holder, _), waiter in self.waiters.items():
                if (holder, waiter.request.owner) == one and waiter.is_process:
                    pending += self._blockers(holder, waiter.request)
        return False

    def _blockers(
        self, session: SessionId, request: LockRequest
    ) -> list[tuple[SessionId, LockOwner]]:
        return [
            (holder, lock.owner)
            for holder, locks in self.files[request.ino].held.items()
            for lock in locks
            if lock_rules.conflicts(
                lock if holder == session else replace(lock, owner=_stranger(lock)), request
            )
        ]

    def put(self, session: SessionId, request: LockRequest) -> None:
        """Replaces what an owner has in a range, and wakes waiters."""
        held = self.files[request.ino].held
        own = lock_rules.of_owner(held[session], request.owner)
        rest = [lock for lock in held[session] if lock.owner != request.owner]
        held[session] = rest + lock_rules.replaced(own, request)
        self.wake(request.ino)

    def wake(self, ino: Ino) -> None:
        """Wakes the sessions that wait for locks of a file."""
        for session in {key[0] for key, one in self.waiters.items() if one.request.ino == ino}:
            client = self.clients.get(session)
            if client is not None:
                client.on_wake([ino])

    def delegate(self, session: SessionId, ino: Ino) -> bool:
        """Delegates a file, unless others use its locks."""
        file = self.files[ino]
        alone = not any(locks for holder, locks in file.held.items() if holder != session)
        waited = any(one.request.ino == ino for one in self.waiters.values())
        if not alone or waited or time.monotonic() - file.shared_at < SHARED_FOR:
            return False
        file.delegate = session
        return True

    def end(self, session: SessionId) -> None:
        """Drops everything of a session that has ended."""
        self.clients.pop(session, None)
        for key in [key for key in self.waiters if key[0] == session]:
            del self.waiters[key]
        for ino, file in list(self.files.items()):
            file.held.pop(session, None)
            if file.delegate == session:
                file.delegate = NOBODY
            self.wake(ino)


def _stranger(lock: HeldLock) -> LockOwner:
    """An owner of another session: its number equals that of no owner here."""
    return LockOwner(lock.owner.space, -1)


class MemoryLocks:
    """The locks of one session (`LockStore`)."""

    def __init__(
        self,
        table: LockTable,
        session: Callable[[], SessionId],
        is_alive: Callable[[], bool],
        version: Callable[[Ino], int],
    ) -> None:
        self._table = table
        self._session = session
        self._is_alive = is_alive
        self._version = version
        self._client: LockClient | None = None
        self.can_decide = True

    def attach(self, client: LockClient) -> None:
        self._client = client
        self.join()

    def join(self) -> None:
        """Begins with a new session."""
        if self._client is not None and self._is_alive():
            self._table.clients[self._session()] = self._client

    def _enter(self) -> SessionId:
        if not self._is_alive():
            raise Fenced
        return self._session()

    async def set(self, request: LockRequest, wait: LockWait | None) -> LockAnswer:
        lock_rules.check_request(request)
        table, ino = self._table, request.ino
        session = self._enter()
        while not table.enter(session, ino):
            await asyncio.sleep(PAUSE)
            session = self._enter()
        delegated = False
        blocked = request.mode is not LockMode.UNLOCK and (
            table.conflict(session, request) is not None
            or (wait is not None and table.must_queue(session, wait, request))
        )
        if blocked:
            own = lock_rules.of_owner(table.files[ino].held[session], request.owner)
            if lock_rules.loses_before_wait(own, request):
                table.put(session, replace(request, mode=LockMode.UNLOCK))
            if wait is not None:
                table.queue(session, wait, request)
        else:
            if wait is not None:
                table.waiters.pop((session, wait.ticket), None)
            table.put(session, request)
            delegated = request.mode is not LockMode.UNLOCK and table.delegate(session, ino)
        return LockAnswer(not blocked, delegated, self._version(ino))

    async def cancel(self, ticket: int) -> None:
        waiter = self._table.waiters.pop((self._enter(), ticket), None)
        if waiter is not None:
            self._table.wake(waiter.request.ino)

    async def test(self, request: LockRequest) -> tuple[HeldLock, bool] | None:
        lock_rules.check_request(request)
        session = await self._recalled(request.ino)
        found = self._table.conflict(session, request)
        if found is None:
            return None
        space = LockSpace(request.owner.space)
        return replace(found[1], owner=LockOwner(space, 0)), found[0] == session

    async def _recalled(self, ino: Ino) -> SessionId:
        """This session, when no other one has the delegation of a file."""
        session = self._session()
        while not self._table.recall(session, ino):
            await asyncio.sleep(PAUSE)
            session = self._session()
        return session

    async def give_back(self, ino: Ino, locks: Sequence[HeldLock]) -> int:
        session = self._enter()
        file = self._table.files[ino]
        if file.delegate == session:
            file.delegate = NOBODY
        file.held[session] = list(locks)
        self._table.wake(ino)
        return self._version(ino)

    async def listing(self, limit: int) -> list[ListedLock]:
        for ino in list(self._table.files):
            await self._recalled(ino)
        locks = [
            ListedLock(
                ino,
                lock.owner.space,
                lock.mode,
                lock.first,
                lock.last,
                lock.pid,
                session,
                waits=False,
            )
            for ino, file in self._table.files.items()
            for session, held in file.held.items()
            for lock in held
        ]
        for (session, _), waiter in self._table.waiters.items():
            one = waiter.request
            space, mode = one.owner.space, one.mode
            locks.append(
                ListedLock(one.ino, space, mode, one.first, one.last, 0, session, waits=True)
            )
        return sorted(locks, key=lambda one: (one.ino, one.waits, one.first))[:limit]
