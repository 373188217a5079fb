"""One lock per box, steps side by side, and work that a cancellation does not cut short."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from boxd.errors import BoxdError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

_T = TypeVar("_T")


class BoxLocks:
    """Serialises the calls for one box. A lock is forgotten when nobody holds or awaits it."""

    def __init__(self) -> None:
        self._locks: dict[str, _Counted] = {}

    @asynccontextmanager
    async def alone(self, box_id: str) -> AsyncIterator[None]:
        """Waits until no other call for the box is under way, and keeps others waiting."""
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
    """A lock and how many hold or await it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


async def to_the_end(cleanup: Coroutine[Any, Any, None]) -> None:
    """Runs a clean-up that a cancellation must not cut short; every step of it is bounded."""
    task = asyncio.ensure_future(cleanup)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    task.result()


async def together(*steps: Coroutine[Any, Any, object]) -> None:
    """Takes steps side by side; when it returns or raises, also for a cancellation, all have ended.

    What is raised is what the first of those that failed, in their order here, has raised.
    """
    for outcome in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


async def ended(work: asyncio.Future[_T]) -> _T:
    """Waits for work that cannot be broken off. When it is cancelled, the work has ended before the
    cancellation goes on."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        raise


async def settled(call: Coroutine[Any, Any, None]) -> None:
    """Makes a bounded call whose outcome must be known before anything else is done.

    A cancellation is raised when it has ended: what it made can be found, and undone, then.
    """
    task = asyncio.ensure_future(call)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError, BoxdError):
                await asyncio.shield(task)
        raise
