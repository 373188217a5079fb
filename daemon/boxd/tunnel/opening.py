"""Opening a channel or a listener of a tunnel: who asked has it, or nobody.

asyncssh forgets what it opens when the opener is cancelled. It comes to be open all the same, with
a command, a connection or a socket in the box, and nobody would ever close it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


async def opened(opening: Awaitable[T], discard: Callable[[T], object]) -> T:
    """What `opening` gives. When the caller is cancelled, the opening goes on by itself, and its
    result is discarded."""
    task = asyncio.create_task(_wait(opening))
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.add_done_callback(lambda late: _discard(late, discard))
        raise
    return task.result()


async def _wait(opening: Awaitable[T]) -> T:
    return await opening


def _discard(late: asyncio.Task[T], discard: Callable[[T], object]) -> None:
    if not late.cancelled() and late.exception() is None:
        discard(late.result())
