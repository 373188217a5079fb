"""Waits in tests for a condition with a deadline, never for a length of time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE = 30.0
"""Seconds after which an unmet condition is a failure."""


async def until(condition: Callable[[], object], deadline: float = DEADLINE) -> None:
    """Return when `condition()` is true; raise TimeoutError after `deadline` seconds."""
    async with asyncio.timeout(deadline):
        while not condition():  # noqa: ASYNC110 - what it looks at has no event to wait for
            await asyncio.sleep(0.01)


async def at_once(condition: Callable[[], object], deadline: float = DEADLINE) -> None:
    """Wait like `until`, but check in every turn of the event loop.

    So no task of this loop has done its next step after the condition became true.
    """
    async with asyncio.timeout(deadline):
        while not condition():  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
