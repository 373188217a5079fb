"""Who is let in: what the operator decided on owners and on new work, and who is no stranger.

It is read at the start and kept in memory, so that asking costs nothing. Critical sections: `block`
and `unblock` write the row and what is kept under a lock, so that both end the same; no other
method but `start` awaits.
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


class Gate:
    """See the module. Before `start` nobody is blocked and nobody known."""

    def __init__(
        self, store: ControlStore, clock: Clock, unblockable: Container[str] = frozenset()
    ) -> None:
        """`unblockable`: owners that cannot be blocked at the time when it is asked for."""
        self._store = store
        self._clock = clock
        self._unblockable = unblockable
        self._blocked: dict[str, datetime] = {}
        self._known: set[str] = set()
        self._lock = asyncio.Lock()
        self.draining = False
        """No new work; ends with the process."""

    async def start(self) -> None:
        """Reads who is blocked. Unavailable."""
        for account in await self._store.accounts():
            self._known.add(account.owner)
            if account.blocked is not None:
                self._blocked[account.owner] = account.blocked

    def blocked_since(self, owner: str) -> datetime | None:
        """None: not blocked."""
        return self._blocked.get(owner)

    def check_owner(self, owner: str) -> None:
        """Forbidden for one who is blocked."""
        if owner in self._blocked:
            raise Forbidden(BLOCKED)

    def check_work(self) -> None:
        """Unavailable while no new work is taken."""
        if self.draining:
            raise Unavailable(
                "the operator takes no new work at the moment; what runs goes on: try again later"
            )

    async def block(self, owner: str) -> None:
        """Lets nobody in with the owner's keys. Conflict for an administrator; Unavailable."""
        if owner in self._unblockable:
            raise Conflict(
                f"{owner} is an administrator: take the key out of the file of --admin-keys first"
            )
        async with self._lock:
            since = self._blocked.get(owner) or self._clock.now()
            await self._store.set_blocked(owner, since)
            self._known.add(owner)
            self._blocked[owner] = since

    async def unblock(self, owner: str) -> None:
        """Lets an owner in again; no error if it was not blocked. Unavailable."""
        async with self._lock:
            if owner in self._blocked:
                await self._store.set_blocked(owner, None)
                del self._blocked[owner]

    def learn(self, owner: str) -> None:
        """The owner is no stranger any more."""
        self._known.add(owner)

    def knows(self, owner: str) -> bool:
        """Whether the owner has, or had, something here, or the operator decided on it."""
        return owner in self._known
