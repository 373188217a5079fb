"""How many bytes of results are in the making for one owner, over all connections of the owner.

A large result stands in memory in several forms until its text waits to be sent. Who makes one
takes its size from the owner's budget first, in the order of asking; small ones pass by.

Critical sections: none; nothing is awaited between a look at the state and its change.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Self
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from types import TracebackType

BYTES = 16 * 1024 * 1024
"""Of one owner."""
SMALL = 256 * 1024
"""Results of so many bytes take nothing."""


class Budget:
    """One owner's. `taken` is never more than `size`."""

    def __init__(self, size: int = BYTES) -> None:
        self.size = size
        self.taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> int:
        """Waits until so many bytes are free, behind all who wait already; how many were taken.

        What is larger than the budget takes it alone. Who is cancelled has taken nothing.
        """
        size = min(size, self.size)
        if not self._waiting and self._fits(size):
            self.taken += size
            return size
        given = asyncio.get_running_loop().create_future()
        self._waiting.append((size, given))
        try:
            await given
        except asyncio.CancelledError:
            if given.cancelled():
                self._waiting.remove((size, given))
                self._admit()
            else:
                self.give(size)
            raise
        return size

    def give(self, size: int) -> None:
        """Gives back what was taken."""
        self.taken -= size
        self._admit()

    def _fits(self, size: int) -> bool:
        return self.taken + size <= self.size

    def _admit(self) -> None:
        while self._waiting:
            size, given = self._waiting[0]
            if given.cancelled():
                return  # it removes itself, and asks again
            if not self._fits(size):
                return
            self._waiting.popleft()
            self.taken += size
            given.set_result(None)


class Share:
    """What one call has taken."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._taken = 0

    async def take(self, size: int) -> None:
        """Waits for room for a result of so many bytes. Once in a call, which waits for no other
        call from then on: else calls could wait for each other."""
        if size > SMALL:
            self._taken += await self._budget.take(size)

    def release(self) -> None:
        """Gives all of it back. Idempotent."""
        taken, self._taken = self._taken, 0
        if taken:
            self._budget.give(taken)


class Budgets:
    """Those of all owners who have connections."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[str, Budget] = WeakValueDictionary()

    def of(self, owner: str) -> Budget:
        """The owner's, the same for all who hold it at a time."""
        found = self._known.get(owner)
        if found is None:
            self._known[owner] = found = Budget()
        return found


class Unsent:
    """The shares of calls of one connection that are done, whose answers are not yet on their way.

    A context: at its end all are released, and what comes later is at once.
    """

    def __init__(self) -> None:
        self._shares: dict[str | int | None, Share] = {}
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self._closed = True
        self.release_all()

    def keep(self, number: str | int | None, share: Share) -> None:
        """Until the request is answered, or is not going to be."""
        self.release(number)
        if self._closed:
            share.release()
        else:
            self._shares[number] = share

    def release(self, number: str | int | None) -> None:
        """Of one request."""
        if (share := self._shares.pop(number, None)) is not None:
            share.release()

    def release_all(self) -> None:
        """Of all requests."""
        for number in list(self._shares):
            self.release(number)
