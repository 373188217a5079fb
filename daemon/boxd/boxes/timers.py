"""When boxes are due, and what has to be tried again.

What is due and when is decided in `schedule`, for the acts as for what `ls` tells. Polls both
clocks, so that a step of the wall clock is seen within a tick. Each box is dealt with in a task of
its own, so that one that hangs delays no other (as long as fewer than `_PARALLEL` hang).

A deadline waits neither for what else was begun with its box nor for a slot that others have.

Critical section: none across an await; a box is dealt with once at a time, as `_busy` holds it, and
once more for its deadline. Who acts decides again under the box's lock.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Protocol

from boxd.boxes.loops import watched
from boxd.boxes.moments import Now
from boxd.boxes.policy import SHIPPED, Policy
from boxd.boxes.schedule import due
from boxd.errors import BoxdError
from boxd.model.view import NextAct

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from boxd.boxes.schedule import Due, Facts
    from boxd.clock import Clock
    from boxd.model.box import Box

TICK = 1.0
"""Seconds between looks at what is due."""
RETRY = 30.0
"""Seconds between tries to clear what is left of a removed box, or to settle one."""
UPKEEP = 10.0
"""Seconds between writings of what is kept in memory."""
_PARALLEL = 64
"""Boxes that are dealt with at the same time; so many that hang delay the others."""

_NO_BOX = ""
"""Stands for a box where something is done for all of them."""

_log = logging.getLogger(__name__)


class Acts(Protocol):
    """What the timers have done. What is raised is logged, and it is called again later."""

    async def act(self, box: Box, due: Due) -> None:
        """Does what was due when the timers looked, if it still is."""
        ...

    async def settle(self, box: Box) -> None:
        """Brings a box to a steady state that a failure left between two."""
        ...

    async def clear(self, box: Box) -> None:
        """Removes what is left of a removed box."""
        ...

    async def upkeep(self) -> None:
        """Writes down what is kept in memory."""
        ...


class Timers:
    """See the module. Knows a box from `watch` or `doom` until it is forgotten."""

    def __init__(
        self,
        clock: Clock,
        *,
        facts: Callable[[Box], Facts],
        policy: Policy = SHIPPED,
    ) -> None:
        """`facts` tells what is known of a box as its row tells it."""
        self._clock = clock
        self._policy = policy
        self._acts: Acts | None = None
        self._facts = facts
        self._boxes: dict[str, Box] = {}
        self._unsettled: dict[str, Box] = {}
        self._doomed: dict[str, Box] = {}
        self._told: set[str] = set()
        self._busy: dict[tuple[str, bool], asyncio.Task[None]] = {}
        self._slots = {urgent: asyncio.Semaphore(_PARALLEL) for urgent in (False, True)}
        self._loop: asyncio.Task[None] | None = None
        self._retry_at = self._upkeep_at = clock.monotonic()
        self._closing = False

    def watch(self, box: Box) -> None:
        """Acts on the box as its row is now."""
        self._boxes[box.id] = box

    def unwatch(self, box: Box) -> None:
        """The box has no row any more."""
        self._boxes.pop(box.id, None)
        self._unsettled.pop(box.id, None)

    def knows(self, box_id: str) -> bool:
        """Whether the box has a row."""
        return box_id in self._boxes

    def known(self, box_id: str) -> Box | None:
        """The box as its row is; None when it has none."""
        return self._boxes.get(box_id)

    def due(self, box: Box) -> Due | None:
        """What happens to the box next by itself; None: nothing."""
        return self._due(box, Now.read(self._clock))

    def ripe(self, box: Box) -> Due | None:
        """What is to be done with the box now; None: nothing."""
        return self._ripe(box, Now.read(self._clock))

    def next_act(self, box: Box) -> NextAct | None:
        """What `ls` shows: what happens next, and what the wall clock will show then."""
        now = Now.read(self._clock)
        coming = self._due(box, now)
        return None if coming is None else NextAct(coming.act.value, now.shown(coming.moment))

    def deadline_passed(self, box: Box) -> bool:
        """Whether the box is to be removed whoever uses it."""
        ripe = self.ripe(box)
        return ripe is not None and ripe.urgent

    def unsettled(self, box: Box, why: BaseException) -> None:
        """Has the box settled later; `why` is logged the first time."""
        if box.id not in self._unsettled:
            _log.warning("box is %s: %s; trying again", box.state, why, extra={"box": box.id})
        self._unsettled[box.id] = box

    def doom(self, box: Box, why: Exception) -> None:
        """Has what is left of the box cleared later; `why` is logged the first time."""
        if box.id not in self._doomed:
            _log.warning("%s; trying again", why, extra={"box": box.id})
        self._doomed[box.id] = box

    @property
    def doomed(self) -> frozenset[str]:
        """Ids of the boxes that are not wholly removed."""
        return frozenset(self._doomed)

    def start(self, acts: Acts) -> None:
        """Begins to look, and to have `acts` done."""
        self._acts = acts
        self._retry_at = self._clock.monotonic() + RETRY
        self._upkeep_at = self._clock.monotonic() + UPKEEP
        self._loop = watched(asyncio.create_task(self._run(), name="box timers"))

    async def close(self) -> None:
        """Stops looking; what has begun is finished, what waits for its turn is not begun."""
        self._closing = True
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
            self._loop = None
        await asyncio.gather(*self._busy.values())

    def look(self) -> None:
        """Begins what is to be done now. Nothing before `start`."""
        acts = self._acts
        if acts is None:
            return
        present = Now.read(self._clock)
        for box in list(self._boxes.values()):
            try:
                ripe = self._ripe(box, present)
            except Exception:
                self._tell_bug(box.id)
                continue
            if ripe is not None:
                work = partial(acts.act, box, ripe)
                self._begin(box.id, work, urgent=ripe.urgent)
        now = self._clock.monotonic()
        if now >= self._retry_at:
            self._retry_at = now + RETRY
            for box in list(self._unsettled.values()):
                self._begin(box.id, partial(self._settled, acts, box))
            for box in list(self._doomed.values()):
                self._begin(box.id, partial(self._cleared, acts, box))
        if now >= self._upkeep_at:
            self._upkeep_at = now + UPKEEP
            self._begin(_NO_BOX, acts.upkeep)

    async def idle(self) -> None:
        """Waits until everything that was begun is done."""
        while self._busy:
            await asyncio.gather(*self._busy.values(), return_exceptions=True)

    def _due(self, box: Box, now: Now) -> Due | None:
        return due(self._facts(box), self._policy, now)

    def _ripe(self, box: Box, now: Now) -> Due | None:
        coming = self._due(box, now)
        return coming if coming is not None and coming.ripe(now) else None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self.look()

    def _begin(
        self, box_id: str, work: Callable[[], Awaitable[None]], *, urgent: bool = False
    ) -> None:
        key = (box_id, urgent)
        if key not in self._busy:
            task = asyncio.create_task(
                self._guarded(box_id, work, self._slots[urgent]), name=f"due: box {box_id}"
            )
            self._busy[key] = task
            task.add_done_callback(lambda _: self._busy.pop(key))

    async def _guarded(
        self, key: str, work: Callable[[], Awaitable[None]], slots: asyncio.Semaphore
    ) -> None:
        async with slots:
            if self._closing:
                return
            try:
                await work()
            except BoxdError as error:
                if key not in self._told:
                    _log.warning("box not dealt with: %s; trying again", error, extra={"box": key})
                self._told.add(key)
            except Exception:
                self._tell_bug(key)
            else:
                self._told.discard(key)

    def _tell_bug(self, key: str) -> None:
        """Logs, once, what is being handled: a bug with one box must not keep the others."""
        if key not in self._told:
            _log.exception("box not dealt with; trying again", extra={"box": key})
        self._told.add(key)

    async def _settled(self, acts: Acts, box: Box) -> None:
        await acts.settle(box)
        self._unsettled.pop(box.id, None)

    async def _cleared(self, acts: Acts, box: Box) -> None:
        await acts.clear(box)
        self._doomed.pop(box.id, None)
