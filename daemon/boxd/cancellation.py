"""Work that a cancellation does not interrupt, and concurrent steps that all end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from boxd.errors import BoxdError

if TYPE_CHECKING:
    from collections.abc import Coroutine

_T = TypeVar("_T")


async def to_the_end(cleanup: Coroutine[Any, Any, None]) -> None:
    """Run a clean-up that a cancellation must not interrupt. Each of its steps is bounded."""
    task = asyncio.ensure_future(cleanup)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    task.result()


async def together(*steps: Coroutine[Any, Any, object]) -> None:
    """Run steps concurrently. All have ended when this returns or raises, even if cancelled.

    Raises the error of the first failed step, in the order of the arguments.
    """
    for outcome in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


async def ended(work: asyncio.Future[_T]) -> _T:
    """Wait for work that cannot be cancelled. A cancellation is raised after the work has ended."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        raise


async def settled(call: Coroutine[Any, Any, None]) -> None:
    """Run a bounded call whose outcome must be known before anything else happens.

    A cancellation is raised after the call has ended. So its result can be found and undone.
    """
    task = asyncio.ensure_future(call)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError, BoxdError):
                await asyncio.shield(task)
        raise
