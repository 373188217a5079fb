"""Distinguishes a slow server from one that was unreachable.

A request that was sent during an outage may wait for its whole timeout, long after the server is
back. So while requests wait suspiciously long, `OutageProbe` sends one small probe at a time. If
the first probe succeeds, the server is only slow, and the requests continue. If a probe succeeds
after a failed one, all requests that began before it are sent again at once.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SUSPECT = 2.0
"""Seconds after which an unanswered request is suspicious."""
TIMEOUT = 2.0
"""Maximum number of seconds of one probe."""
PAUSE = 0.5
"""Seconds between two probes of an unreachable server."""


class OutageProbe:
    """Probes one server, one probe at a time.

    Critical section: none across an await; `_task` is the task that probes.
    """

    def __init__(
        self,
        probe: Callable[[], Awaitable[None]],
        waiting: Callable[[], bool],
        resend: Callable[[float], None],
    ) -> None:
        """`probe` raises if the server is unreachable. `waiting` returns True if a request waits.

        `resend` receives the loop's time of the first successful probe after an outage: requests
        that began before it are lost.
        """
        self._probe = probe
        self._waiting = waiting
        self._resend = resend
        self._task: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Start a probe, unless one is in progress. Call it while a request is suspicious."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._probe_until_answer(), name="wrkfs outage probe")

    async def close(self) -> None:
        """Stop probing. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _probe_until_answer(self) -> None:
        """Probe until the server answers or no request waits."""
        unreachable = False
        while self._waiting():
            start = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(TIMEOUT):
                    await self._probe()
            except Exception:
                # Any error counts: the server does not answer.
                unreachable = True
            else:
                if unreachable:
                    self._resend(start)
                return
            await asyncio.sleep(PAUSE)
