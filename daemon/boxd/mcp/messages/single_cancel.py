"""Run work that must be cancelled only once, and give it time to clean up."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


async def run_with_single_cancel(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` as a task and return its result.

    If the caller is cancelled, the function cancels the task once. It raises CancelledError after
    the task has ended.
    """
    # The MCP library cancels as anyio does: again at each await. Code that uses a box expects a
    # single cancellation.
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
            task.exception()  # retrieved, so that asyncio does not log it as never retrieved
        raise
