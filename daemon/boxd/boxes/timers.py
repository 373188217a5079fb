"""When boxes are due: deadlines, and what is left of removed boxes.

What is due and when is decided in `schedule`, for the acts as for what `ls` tells. Polls both
clocks, so that a step of the wall clock is seen within a tick. Each box is dealt with in a task of
its own, so that one that hangs delays no other (as long as fewer than `_PARALLEL` hang).

Critical section: none across an await; a box is dealt with once at a time, as `_busy` holds it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from boxd.boxes.moments import Now
from boxd.boxes.policy import SHIPPED, Policy
from boxd.boxes.schedule import Act, due, facts_of
from boxd.errors import BoxdError
from boxd.model.view import NextAct

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from boxd.clock import Clock
    from boxd.model.box import Box

TICK = 1.0
"""Seconds between looks at the deadlines."""
RETRY_DOOMED = 30.0
"""Seconds between tries to clear what is left of a removed box."""
_PARALLEL = 64
"""Boxes that are dealt with at the same time; so many that hang delay the others."""

_log = logging.getLogger(__name__)


class Timers:
    """See the module. Knows boxes from `watch` and `doom` until they are forgotten."""

    def __init__(
        self,
        clock: Clock,
        *,
        expire: Callable[[Box], Awaitable[None]],
        clear: Callable[[Box], Awaitable[None]],
        policy: Policy = SHIPPED,
    ) -> None:
        """`expire` removes a box whose deadline passed, `clear` what is left of a removed one.

        What they raise is logged, and they are called again later.
        """
        self._clock = clock
        self._policy = policy
        self._expire = expire
        self._clear = clear
        self._deadlines: dict[str, Box] = {}
        self._doomed: dict[str, Box] = {}
        self._told: set[str] = set()
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(_PARALLEL)
        self._loop: asyncio.Task[None] | None = None
        self._closing = False

    def watch(self, box: Box) -> None:
        """Has the box expire at its deadline, if it has one."""
        if box.deadline is not None:
            self._deadlines[box.id] = box

    def unwatch(self, box: Box) -> None:
        """The box has no deadline any more."""
        self._deadlines.pop(box.id, None)

    def next_act(self, box: Box) -> NextAct | None:
        """What happens to the box next by itself; None: nothing."""
        now = Now.read(self._clock)
        next_due = due(facts_of(box), self._policy, now)
        return None if next_due is None else NextAct(next_due.act.value, now.shown(next_due.moment))

    def removal_due(self, box: Box) -> bool:
        """Whether the moment has come at which the box is to be removed."""
        now = Now.read(self._clock)
        next_due = due(facts_of(box), self._policy, now)
        return next_due is not None and next_due.act is Act.REMOVE and next_due.ripe(now)

    def doom(self, box: Box, why: Exception) -> None:
        """Has what is left of the box cleared later; `why` is logged the first time."""
        if box.id not in self._doomed:
            _log.warning("%s; trying again", why, extra={"box": box.id})
        self._doomed[box.id] = box

    @property
    def doomed(self) -> frozenset[str]:
        """Ids of the boxes that are not wholly removed."""
        return frozenset(self._doomed)

    def start(self) -> None:
        """Begins to look."""
        self._loop = asyncio.create_task(self._run(), name="box deadlines")

    async def close(self) -> None:
        """Stops looking; what has begun is finished, what waits for its turn is not begun."""
        self._closing = True
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
            self._loop = None
        await asyncio.gather(*self._busy.values())

    async def _run(self) -> None:
        retry_at = self._clock.monotonic() + RETRY_DOOMED
        while True:
            await asyncio.sleep(TICK)
            for box in list(self._deadlines.values()):
                if self.removal_due(box):
                    self._begin(box, self._expired)
            if self._clock.monotonic() >= retry_at:
                retry_at = self._clock.monotonic() + RETRY_DOOMED
                for box in list(self._doomed.values()):
                    self._begin(box, self._cleared)

    def _begin(self, box: Box, deal: Callable[[Box], Awaitable[None]]) -> None:
        if box.id not in self._busy:
            task = asyncio.create_task(self._guarded(box, deal), name=f"due: box {box.id}")
            self._busy[box.id] = task
            task.add_done_callback(lambda _: self._busy.pop(box.id))

    async def _guarded(self, box: Box, deal: Callable[[Box], Awaitable[None]]) -> None:
        async with self._slots:
            if self._closing:
                return
            try:
                await deal(box)
            except BoxdError as error:
                self._tell(box, "box not removed: %s; trying again", error)
            except Exception:
                # A bug with one box must not keep the others.
                if box.id not in self._told:
                    _log.exception("box not removed; trying again", extra={"box": box.id})
                self._told.add(box.id)
            else:
                self._told.discard(box.id)

    def _tell(self, box: Box, text: str, error: Exception) -> None:
        if box.id not in self._told:
            _log.warning(text, error, extra={"box": box.id})
        self._told.add(box.id)

    async def _expired(self, box: Box) -> None:
        if box.id not in self._told:
            _log.info("deadline passed", extra={"box": box.id})
        await self._expire(box)
        self.unwatch(box)

    async def _cleared(self, box: Box) -> None:
        await self._clear(box)
        self._doomed.pop(box.id, None)
