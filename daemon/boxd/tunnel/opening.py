"""Opens a channel or listener of a tunnel without leaking it when the caller is cancelled.

asyncssh forgets an opening whose caller is cancelled. The channel still opens, with a command, a
connection or a socket in the box, and nothing would ever close it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


async def opened(opening: Awaitable[T], discard: Callable[[T], object]) -> T:
    """Return the result of `opening`.

    If the caller is cancelled, the opening continues in the background, and its result is
    discarded.
    """
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
