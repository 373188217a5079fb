"""Locks of a backend, one for each box or image: the calls for one of them run in turn."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class BoxLocks:
    """Serialises the calls for each box. Locks without a holder or waiter are removed."""

    def __init__(self) -> None:
        self._locks: dict[str, _Counted] = {}

    @asynccontextmanager
    async def alone(self, box_id: str) -> AsyncIterator[None]:
        """Hold the lock of a box: wait for other calls for the box, and block later ones."""
        counted = self._locks.setdefault(box_id, _Counted())
        counted.users += 1
        try:
            async with counted.lock:
                yield
        finally:
            counted.users -= 1
            if counted.users == 0:
                del self._locks[box_id]


class _Counted:
    """A lock, and the number of its holders and waiters."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
