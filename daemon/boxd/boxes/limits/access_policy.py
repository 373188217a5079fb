"""The access policy: which owners are blocked, whether the daemon takes new work, and known owners.

The policy is read at startup and stays in memory, so a check costs no query. Critical sections:
`block` and `unblock` change the row and the memory under a lock, so that both agree. Besides these,
only `start` awaits.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from boxd.errors import Conflict, Forbidden, Unavailable

if TYPE_CHECKING:
    from collections.abc import Container
    from datetime import datetime

    from boxd.clock import Clock
    from boxd.store.interface import ControlStore

BLOCKED = "this account is blocked: ask the operator of this service"


class AccessPolicy:
    """Decides which owners have access. Before `start`, no owner is blocked and none is known."""

    def __init__(
        self, store: ControlStore, clock: Clock, unblockable: Container[str] = frozenset()
    ) -> None:
        """`unblockable` contains the owners that cannot be blocked; it may change over time."""
        self._store = store
        self._clock = clock
        self._unblockable = unblockable
        self._blocked: dict[str, datetime] = {}
        self._owners: set[str] = set()
        self._lock = asyncio.Lock()
        self.draining = False
        """Whether the daemon rejects new work. Ends with the process."""

    async def start(self) -> None:
        """Read the accounts of the store. Raises Unavailable."""
        for account in await self._store.accounts():
            self._owners.add(account.owner)
            if account.blocked is not None:
                self._blocked[account.owner] = account.blocked

    def blocked_since(self, owner: str) -> datetime | None:
        """Return when the owner was blocked, or None."""
        return self._blocked.get(owner)

    def check_owner(self, owner: str) -> None:
        """Raise Forbidden if the owner is blocked."""
        if owner in self._blocked:
            raise Forbidden(BLOCKED)

    def check_work(self) -> None:
        """Raise Unavailable while the daemon rejects new work."""
        if self.draining:
            raise Unavailable(
                "this service accepts no new work at the moment, but running work continues; "
                "try again later"
            )

    async def block(self, owner: str) -> None:
        """Reject all keys of an owner. Raises Conflict for an administrator; Unavailable."""
        if owner in self._unblockable:
            raise Conflict(
                f"{owner} is an administrator: remove the key from the file of --admin-keys first"
            )
        async with self._lock:
            since = self._blocked.get(owner) or self._clock.now()
            await self._store.set_blocked(owner, since)
            self._owners.add(owner)
            self._blocked[owner] = since

    async def unblock(self, owner: str) -> None:
        """Accept the keys of an owner again. No error if it was not blocked. Raises Unavailable."""
        async with self._lock:
            if owner in self._blocked:
                await self._store.set_blocked(owner, None)
                del self._blocked[owner]

    def learn(self, owner: str) -> None:
        """Record that the owner has an object in this service."""
        self._owners.add(owner)

    def knows(self, owner: str) -> bool:
        """Return whether the owner has or had an object here, or has an account record."""
        return owner in self._owners
