"""Waiting in tests: for a condition, with a deadline, never for a length of time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE = 30.0
"""Seconds after which a condition that does not come true is a failure."""


async def until(condition: Callable[[], object], deadline: float = DEADLINE) -> None:
    """Returns when `condition()` is true; raises TimeoutError after `deadline` seconds."""
    async with asyncio.timeout(deadline):
        while not condition():  # noqa: ASYNC110 - what it looks at has no event to wait for
            await asyncio.sleep(0.01)


async def at_once(condition: Callable[[], object], deadline: float = DEADLINE) -> None:
    """As `until`, but it looks in every turn of the event loop.

    So what a task of the same loop does next, after the condition has come true, is not done yet.
    """
    async with asyncio.timeout(deadline):
        while not condition():  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
