"""Bytes of results that this process encodes for one owner, over all of the owner's connections.

A large result is in memory in several forms until its text waits to be sent. A call takes the size
of its result from the owner's budget first; calls wait in FIFO order. Small results take nothing
and do not wait.

Critical sections: none; no method awaits between reading the state and changing it.
"""

from __future__ import annotations

import asyncio
from collections import deque

from boxd.boxes.limits.budgets.owner_map import OwnerMap

BYTES = 16 * 1024 * 1024
"""The budget of one owner."""
SMALL = 256 * 1024
"""Results of up to this many bytes take nothing from the budget."""


class Budget:
    """The bytes of one owner. `taken` is never more than `size`."""

    def __init__(self, size: int = BYTES) -> None:
        self.size = size
        self.taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> int:
        """Take bytes, after all callers that are already waiting; return how many were taken.

        A size above the budget takes the whole budget. A cancelled call has taken nothing.
        """
        size = min(size, self.size)
        if not self._waiting and self._fits(size):
            self.taken += size
            return size
        admitted = asyncio.get_running_loop().create_future()
        self._waiting.append((size, admitted))
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.cancelled():
                self._waiting.remove((size, admitted))
                self._admit()
            else:
                self.give(size)
            raise
        return size

    def give(self, size: int) -> None:
        """Return bytes to the budget, and admit the calls that fit now."""
        self.taken -= size
        self._admit()

    def _fits(self, size: int) -> bool:
        return self.taken + size <= self.size

    def _admit(self) -> None:
        while self._waiting:
            size, admitted = self._waiting[0]
            if admitted.cancelled():
                return  # the cancelled call removes itself, and calls this method again
            if not self._fits(size):
                return
            self._waiting.popleft()
            self.taken += size
            admitted.set_result(None)


class Share:
    """The bytes that one call has taken from a budget."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._amount = 0

    async def take(self, size: int) -> None:
        """Wait until a result of `size` bytes fits into the budget.

        A call takes bytes only once, and waits for no other call afterwards. Otherwise two calls
        could wait for each other.
        """
        if size > SMALL:
            self._amount += await self._budget.take(size)

    def release(self) -> None:
        """Return all bytes to the budget. Idempotent."""
        amount, self._amount = self._amount, 0
        if amount:
            self._budget.give(amount)


class Budgets:
    """The budgets of all owners with connections."""

    def __init__(self) -> None:
        self._owners = OwnerMap(lambda: Budget())

    def of(self, owner: str) -> Budget:
        """Return the owner's budget; concurrent callers get the same one."""
        return self._owners.of(owner)
