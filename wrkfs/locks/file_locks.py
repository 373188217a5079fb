"""The locks that one session has on one file, and the open files through which it took them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from wrkfs.meta import lock_rules
from wrkfs.types import LOCK_END, LockMode, LockRequest

if TYPE_CHECKING:
    from wrkfs.handle import FileHandle
    from wrkfs.types import HeldLock, Ino, LockOwner


class FileLocks:
    """State of one file.

    Critical section: `gate` is held through each call of the store and through each local decision.
    So `held` and the rows of the store change in the same order. Only a loss of all locks does not
    wait for it: it is one step, and the holder of the gate looks for it after its call.
    """

    __slots__ = (
        "delegated",
        "gate",
        "held",
        "ino",
        "losses",
        "requests",
        "users",
        "version",
        "waits",
    )

    def __init__(self, ino: Ino) -> None:
        self.ino = ino
        self.gate = asyncio.Lock()
        self.held: list[HeldLock] = []
        self.delegated = False
        """True while the session decides about the locks of this file alone."""
        self.users: dict[LockOwner, set[FileHandle]] = {}
        """Handles through which each owner has requested locks."""
        self.version: int | None = None
        """Version of the file's bytes when the session last had a lock; None: it had none."""
        self.waits: set[asyncio.Event] = set()
        """Events that make the waiting requests try again."""
        self.requests = 0
        """Number of requests in progress."""
        self.losses = 0
        """Number of times that the session has lost its locks."""

    @property
    def is_unused(self) -> bool:
        """True if the state says nothing that the session must remember."""
        return not (self.held or self.delegated or self.requests or self.gate.locked())

    def own(self, owner: LockOwner) -> list[HeldLock]:
        """Return the locks of one owner."""
        return lock_rules.of_owner(self.held, owner)

    def apply(self, request: LockRequest) -> None:
        """Record a request that was granted."""
        rest = [lock for lock in self.held if lock.owner != request.owner]
        self.held = rest + lock_rules.replaced(self.own(request.owner), request)

    def apply_refusal(self, request: LockRequest) -> None:
        """Record a request that was not granted: a conversion by flock(2) loses the old lock."""
        if lock_rules.loses_before_wait(self.own(request.owner), request):
            self.apply(unlock_all(self.ino, request.owner))

    def leave(self, handle: FileHandle) -> list[LockOwner]:
        """Remove a handle that ends; return the owners that have no other handle."""
        ended = []
        for owner, handles in list(self.users.items()):
            if handle in handles:
                handles.discard(handle)
                if not handles:
                    del self.users[owner]
                    ended.append(owner)
        return ended

    def lose(self) -> list[FileHandle]:
        """Drop all locks; return the handles whose owners had some."""
        losers = {lock.owner for lock in self.held}
        handles = {handle for owner in losers for handle in self.users.get(owner, ())}
        self.held = []
        self.delegated = False
        self.version = None
        self.losses += 1
        return list(handles)


def unlock_all(ino: Ino, owner: LockOwner) -> LockRequest:
    """Return the request that releases all locks of an owner on a file."""
    return LockRequest(ino, owner, LockMode.UNLOCK, 0, LOCK_END)
