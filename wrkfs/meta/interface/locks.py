"""Advisory locks of a metadata store. Rules: functions/6_locks.sql and `wrkfs.meta.lock_rules`.

The locks belong to the session: they end when it ends or is fenced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from wrkfs.types import HeldLock, Ino, ListedLock, LockAnswer, LockRequest, LockWait


class LockClient(Protocol):
    """The part of a session that knows its locks. The store calls it."""

    def on_recall(self, inos: Sequence[Ino]) -> None:
        """Return the delegations of these files with `give_back`: another session waits."""
        ...

    def on_wake(self, inos: Sequence[Ino]) -> None:
        """Repeat the requests that wait for locks of these files."""
        ...

    def on_silence(self) -> None:
        """Return all delegations: the session may have missed recalls."""
        ...

    def held(self) -> Mapping[Ino, Sequence[HeldLock]]:
        """Return all locks of the session. After a crash of the database, the store states them
        again. All delegations have ended then.
        """
        ...

    def on_loss(self, inos: Iterable[Ino]) -> None:
        """Record that the session has lost its locks on these files."""
        ...


class LockStore(Protocol):
    """Advisory locks of one volume, as one session sees them."""

    @property
    def can_decide(self) -> bool:
        """True while the session may use delegations: it is alive and receives recalls."""
        ...

    def attach(self, client: LockClient) -> None:
        """Set the object that the store calls. Call it once, before `start` of the store."""
        ...

    async def set(self, request: LockRequest, wait: LockWait | None) -> LockAnswer:
        """Set or release a lock.

        A request without `wait` is not granted if it conflicts with a lock. With `wait` it gets
        a place in the queue, and the caller repeats it with the same ticket after `on_wake`, and
        once a second, until it is granted or canceled. An unlock is always granted. Raises
        Deadlock.
        """
        ...

    async def cancel(self, ticket: int) -> None:
        """End a wait."""
        ...

    async def test(self, request: LockRequest) -> tuple[HeldLock, bool] | None:
        """Return a lock that conflicts with the request, and whether this session holds it."""
        ...

    async def give_back(self, ino: Ino, locks: Sequence[HeldLock]) -> int:
        """Replace all locks of the session on a file by these, and end its delegation.

        Returns the version of the file's bytes, 0 if the file is gone.
        """
        ...

    async def listing(self, limit: int) -> list[ListedLock]:
        """Return up to `limit` locks and waits of all sessions, in the order of their files.

        Recalls delegations first, because only the delegates know those locks.
        """
        ...
