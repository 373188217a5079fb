"""Tells a server that is slow from one that was away.

A request that went into a black hole waits until its own bound, long after the server is back. So
while requests wait suspiciously long, one small probe is sent now and then. A server that answers
it is only slow, and its requests are left alone. When a probe succeeds after one that failed, all
requests that were begun before it are made again at once.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SUSPECT = 2.0
"""Seconds after which a request that is under way is suspicious."""
PROBE = 2.0
"""Seconds that a probe may take."""
PAUSE = 0.5
"""Seconds between two probes of a server that is away."""


class Pulse:
    """Probes one server, one probe at a time.

    `probe` raises when the server is away. `waiting` tells whether any request is under way. `cut`
    gets the loop's time at which a server that had been away answered: what was begun before that
    is lost.

    Critical section: none across an await; `_task` is the one that probes.
    """

    def __init__(
        self,
        probe: Callable[[], Awaitable[None]],
        waiting: Callable[[], bool],
        cut: Callable[[float], None],
    ) -> None:
        self._probe = probe
        self._waiting = waiting
        self._cut = cut
        self._task: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Something waits suspiciously long: probes, unless that is being done already."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._feel(), name="wrkfs pulse")

    async def close(self) -> None:
        """Stops probing. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _feel(self) -> None:
        """Until the server answers or nobody waits for it any more."""
        away = False
        while self._waiting():
            began = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(PROBE):
                    await self._probe()
            except Exception:
                # Whatever it is: the server does not answer.
                away = True
            else:
                if away:
                    self._cut(began)
                return
            await asyncio.sleep(PAUSE)
