"""A user of a `LockStore` that sends every request to the store and answers recalls."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from wrkfs.errors import WrkfsError
from wrkfs.meta import lock_rules
from wrkfs.types import LOCK_END, LockMode, LockOwner, LockRequest, LockSpace, LockWait

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from wrkfs.meta.interface.locks import LockStore
    from wrkfs.types import HeldLock, Ino


def ranged(
    ino: Ino, owner: int, mode: LockMode, first: int = 0, last: int = LOCK_END, pid: int = 0
) -> LockRequest:
    """Return a request as fcntl(2) makes it."""
    return LockRequest(ino, LockOwner(LockSpace.RANGES, owner), mode, first, last, pid)


def whole(ino: Ino, owner: int, mode: LockMode) -> LockRequest:
    """Return a request as flock(2) makes it."""
    return LockRequest(ino, LockOwner(LockSpace.WHOLE_FILE, owner), mode)


class LockUser:
    """One session that uses locks. Implements `LockClient`."""

    def __init__(self, store: LockStore) -> None:
        self.store = store
        self.locks: dict[Ino, list[HeldLock]] = {}
        self.recalled: list[Ino] = []
        self.lost: list[Ino] = []
        self.woken = asyncio.Event()
        self.delegated: set[Ino] = set()
        self._tickets = 0
        self._tasks: set[asyncio.Task[None]] = set()
        store.attach(self)

    def on_recall(self, inos: Sequence[Ino]) -> None:
        for ino in inos:
            self.recalled.append(ino)
            self.delegated.discard(ino)
            task = asyncio.create_task(self._give_back(ino))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _give_back(self, ino: Ino) -> None:
        with suppress(WrkfsError):  # the session may have ended
            await self.store.give_back(ino, self.locks.get(ino, []))

    def on_wake(self, inos: Sequence[Ino]) -> None:
        self.woken.set()

    def on_silence(self) -> None:
        self.on_recall(list(self.delegated))

    def held(self) -> Mapping[Ino, Sequence[HeldLock]]:
        self.delegated.clear()
        return self.locks

    def on_loss(self, inos: Iterable[Ino]) -> None:
        self.lost += inos

    async def set(self, request: LockRequest, wait: LockWait | None = None) -> bool:
        """Request a lock once; return whether it was granted."""
        answer = await self.store.set(request, wait)
        held = self.locks.setdefault(request.ino, [])
        own = lock_rules.of_owner(held, request.owner)
        rest = [lock for lock in held if lock.owner != request.owner]
        if answer.granted:
            self.locks[request.ino] = rest + lock_rules.replaced(own, request)
        elif lock_rules.loses_before_wait(own, request):
            self.locks[request.ino] = rest
        if answer.delegated:
            self.delegated.add(request.ino)
        return answer.granted

    async def wait(self, request: LockRequest, *, is_process: bool = True) -> None:
        """Request a lock until it is granted."""
        wait = self.ticket(is_process)
        while True:
            self.woken.clear()
            if await self.set(request, wait):
                return
            try:
                async with asyncio.timeout(1):
                    await self.woken.wait()
            except TimeoutError:
                continue

    def ticket(self, is_process: bool = True) -> LockWait:
        """Return a new wait."""
        self._tickets += 1
        return LockWait(self._tickets, is_process)
