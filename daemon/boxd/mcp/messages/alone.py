"""Work that is cancelled once and has time to clean up, whoever cancels how often."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


async def alone(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` as a task. When the caller is cancelled, the task is cancelled once, and has
    ended when this raises.

    The protocol's library cancels in the way of anyio, again at each await; what holds a box is
    written for a single cancellation.
    """
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            while not task.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # asked for, so that the loop does not complain that nobody did
        raise
