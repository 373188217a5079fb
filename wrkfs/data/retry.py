"""Retries under one deadline, with exponential backoff and full jitter."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, TypeVar

from wrkfs.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

DEADLINE = 60.0
"""Seconds after which an outage becomes an error. A shorter outage only costs latency."""
FIRST_DELAY = 0.02
"""Upper bound of the first pause, in seconds; it doubles up to MAX_DELAY."""
MAX_DELAY = 2.0

_JITTER = random.SystemRandom()


def backoff(attempt: int) -> float:
    """Return the seconds to wait after attempt number `attempt` (from 0): random below a bound."""
    return _JITTER.uniform(0, min(MAX_DELAY, FIRST_DELAY * 2 ** min(attempt, 16)))


async def retrying(
    call: Callable[[], Awaitable[T]],
    transient: Callable[[Exception], bool],
    action: str,
    *,
    deadline: float = DEADLINE,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T:
    """Return the result of `call`; repeat the call while its errors are transient.

    A permanent error is raised at once. After `deadline` seconds the current attempt is cancelled,
    and Unavailable is raised from the last transient error. Its text starts with `action`.
    """
    last: Exception | None = None
    attempt = 0
    try:
        async with asyncio.timeout(deadline):
            while True:
                try:
                    return await call()
                except Exception as error:
                    if not transient(error):
                        raise
                    last = error
                await sleep(backoff(attempt))
                attempt += 1
    except TimeoutError:
        raise Unavailable(f"{action}: no success within {deadline:g} s") from last
