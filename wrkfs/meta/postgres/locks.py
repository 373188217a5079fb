"""Advisory locks in PostgreSQL. Rules: functions/6_locks.sql."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from wrkfs.errors import Corrupt, Unavailable
from wrkfs.meta.interface.lease_times import RECALL_WAIT
from wrkfs.meta.lock_rules import check_request
from wrkfs.meta.postgres.sessions import boottime
from wrkfs.types import (
    LOCK_END,
    HeldLock,
    Ino,
    ListedLock,
    LockAnswer,
    LockMode,
    LockOwner,
    LockRequest,
    LockSpace,
    SessionId,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    import asyncpg

    from wrkfs.meta.interface.locks import LockClient
    from wrkfs.meta.postgres.links import Link, Links
    from wrkfs.meta.postgres.listener import Listener
    from wrkfs.meta.postgres.sessions import MountSession
    from wrkfs.types import LockWait

_PAUSES = (0.0004, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02)
"""Seconds between two requests for locks that another session is giving back; the last repeats."""
_HALF = 1 << 63


class PostgresLocks:
    """The locks of one session. Implements `LockStore`; the protocol documents each method."""

    def __init__(self, links: Links, session: MountSession, listener: Listener | None) -> None:
        self._links = links
        self._session = session
        self._listener = listener
        self._client: LockClient | None = None

    @property
    def can_decide(self) -> bool:
        return (
            self._listener is not None
            and self._listener.ready
            and not self._session.fenced
            and boottime() < self._session.trusted_until
        )

    def attach(self, client: LockClient) -> None:
        self._client = client
        self._session.restore = self._restore
        if self._listener is not None:
            self._listener.on_lock_recall = client.on_recall
            self._listener.on_lock_wake = client.on_wake
            self._listener.on_lock_silence = client.on_silence

    async def set(self, request: LockRequest, wait: LockWait | None) -> LockAnswer:
        check_request(request)
        ticket, is_process = (None, False) if wait is None else (wait.ticket, wait.is_process)
        key = (request.ino, int(request.owner.space), _signed(request.owner.number))
        span = (int(request.mode), request.first, request.last, request.pid)

        async def attempt() -> asyncpg.Record:
            return await self._session.mutate(
                "set_lock", *key, *span, ticket, is_process, is_change=False
            )

        row = await self._settled(attempt)
        return LockAnswer(row["flag"], row["delegated"] is True, row["version"] or 0)

    async def cancel(self, ticket: int) -> None:
        await self._session.mutate("cancel_lock", ticket, is_change=False)

    async def test(self, request: LockRequest) -> tuple[HeldLock, bool] | None:
        check_request(request)
        owner = (int(request.owner.space), _signed(request.owner.number))
        span = (int(request.mode), request.first, request.last)

        async def attempt() -> asyncpg.Record:
            args = (self._session.id, request.ino, *owner, *span)
            return (await self._links.call("test_lock", args))[0]

        row = await self._settled(attempt)
        if row["mode"] is None:
            return None
        return _conflicting(row, request.owner.space), row["holder"] == self._session.id

    async def give_back(self, ino: Ino, locks: Sequence[HeldLock]) -> int:
        row = await self._session.mutate("return_locks", ino, *_columns(locks), is_change=False)
        return row["version"] or 0

    async def listing(self, limit: int) -> list[ListedLock]:
        locks = await self._listed(limit)
        nobody = LockOwner(LockSpace.RANGES, 0)
        delegated = [lock.ino for lock in locks if lock.mode is None]
        for ino in delegated:
            await self.test(LockRequest(ino, nobody, LockMode.EXCLUSIVE))
        return await self._listed(limit) if delegated else locks

    async def _listed(self, limit: int) -> list[ListedLock]:
        return [_listed(row) for row in await self._links.call("list_locks", (limit,))]

    async def _settled(self, attempt: Callable[[], Awaitable[asyncpg.Record]]) -> asyncpg.Record:
        """Repeat a request while another session gives its delegation back.

        Fences sessions that are in the way and have expired.
        """
        until = time.monotonic() + RECALL_WAIT
        count = 0
        while True:
            row = await attempt()
            dead = row["expired"] or ()
            if dead and self._session.rescue is not None:
                await self._session.rescue()  # a dead process of this host may have a journal
            for session in dead:
                await self._links.call("fence", (session, False))
            if not dead:
                if not row["recalled"]:
                    return row
                if time.monotonic() > until:
                    raise Unavailable("another session does not give its locks back; try again")
                await asyncio.sleep(_PAUSES[min(count, len(_PAUSES) - 1)])
            count += 1

    async def _restore(self, link: Link) -> None:
        """State all locks again, after a crash of the database and before any other call."""
        if self._client is None:
            return
        pairs = [(ino, lock) for ino, locks in self._client.held().items() for lock in locks]
        if not pairs:
            return
        inos = [ino for ino, _ in pairs]
        columns = _columns([lock for _, lock in pairs])
        args = (self._session.id, self._session.epoch, inos, *columns)
        losses = (await link.fetch("restore_locks", args))[0][0]
        if losses:
            self._client.on_loss([Ino(ino) for ino in losses])


def _signed(number: int) -> int:
    """Return an owner's 64 bits as the database stores them."""
    return number - 2 * _HALF if number >= _HALF else number


def _columns(locks: Iterable[HeldLock]) -> tuple[list[int], ...]:
    rows = [
        (
            int(lock.owner.space),
            _signed(lock.owner.number),
            int(lock.mode),
            lock.first,
            lock.last,
            lock.pid,
        )
        for lock in locks
    ]
    return tuple([row[column] for row in rows] for column in range(6))


def _listed(row: asyncpg.Record) -> ListedLock:
    """Return a row of `list_locks`. The role of the volume can write any row."""
    ino, session = Ino(row["ino"]), SessionId(row["session"])
    if row["mode"] is None:
        return ListedLock(ino, LockSpace.RANGES, None, 0, LOCK_END, 0, session, waits=False)
    if row["space"] not in (0, 1):
        raise Corrupt("lock of a file")
    space = LockSpace(row["space"])
    lock = _conflicting(row, space)
    return ListedLock(ino, space, lock.mode, lock.first, lock.last, lock.pid, session, row["waits"])


def _conflicting(row: asyncpg.Record, space: LockSpace) -> HeldLock:
    """Return the lock of a `lock_reply`. The role of the volume can write any row."""
    mode, first, last, pid = row["mode"], row["first"], row["last"], row["pid"]
    if mode not in (1, 2) or not 0 <= first <= last <= LOCK_END or pid < 0:
        raise Corrupt("lock of a file")
    return HeldLock(LockOwner(space, 0), LockMode(mode), first, last, pid)
