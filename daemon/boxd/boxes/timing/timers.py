"""Timers: when an action on a box is due, and when a failed action is retried.

`schedule` decides which action is due and when, for the timers and for `ls`. The timers poll both
clocks, so they notice a step of the wall clock within a tick. Each box has its own task, so a box
that hangs delays no other, unless `_PARALLEL` boxes hang.

A deadline waits neither for other work on its box nor for a slot that other boxes use.

Critical section: none across an await. `_busy` ensures that one task at a time handles a box, and
one more its deadline. The action decides again under the box's lock.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

from boxd.boxes.timing.moments import Now
from boxd.boxes.timing.policy import SHIPPED, Policy
from boxd.boxes.timing.schedule import due, removal
from boxd.errors import BoxdError
from boxd.model.view import NextAct, Removal
from boxd.tasks import BackgroundTasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from boxd.boxes.timing.schedule import Due, Facts
    from boxd.clock import Clock
    from boxd.model.box import Box

TICK = 1.0
"""Seconds between two checks for due actions."""
RETRY = 30.0
"""Seconds between attempts to complete a removal, or to settle a box."""
UPKEEP = 10.0
"""Seconds between writes of values that are only in memory."""
_PARALLEL = 64
"""Boxes that are handled at the same time. If this many hang, the others wait."""

_NO_BOX = ""
"""Key of the work for all boxes together."""

_log = logging.getLogger(__name__)


class TimerActions(Protocol):
    """The actions that the timers call. The timers log errors and repeat the call later."""

    async def act(self, box: Box, due: Due) -> None:
        """Execute the action that was due at the check, if it is still due."""
        ...

    async def settle(self, box: Box) -> None:
        """Bring a box that a failure left between two states to a steady state."""
        ...

    async def clear(self, box: Box) -> None:
        """Remove the remains of a removed box."""
        ...

    async def upkeep(self) -> None:
        """Store values that are only in memory."""
        ...


class Timers:
    """Watches boxes from `watch` or `retry_removal` on until they are forgotten."""

    def __init__(
        self,
        clock: Clock,
        *,
        facts: Callable[[Box], Facts],
        policy: Policy = SHIPPED,
    ) -> None:
        """`facts` returns the facts about a box, given its row."""
        self._clock = clock
        self._policy = policy
        self._actions: TimerActions | None = None
        self._facts = facts
        self._boxes: dict[str, Box] = {}
        self._unsettled: dict[str, Box] = {}
        self._half_removed: dict[str, Box] = {}
        self._logged: set[str] = set()
        self._busy: set[tuple[str, bool]] = set()
        self._work = BackgroundTasks()
        self._slots = {urgent: asyncio.Semaphore(_PARALLEL) for urgent in (False, True)}
        self._loop = BackgroundTasks()
        self._retry_at = self._upkeep_at = clock.monotonic()
        self._closing = False

    def watch(self, box: Box) -> None:
        """Watch the box, given its current row."""
        self._boxes[box.id] = box

    def unwatch(self, box: Box) -> None:
        """Stop watching a box whose row was deleted."""
        self._boxes.pop(box.id, None)
        self._unsettled.pop(box.id, None)

    def knows(self, box_id: str) -> bool:
        """Return whether the box has a row."""
        return box_id in self._boxes

    def known(self, box_id: str) -> Box | None:
        """Return the current row of the box, or None."""
        return self._boxes.get(box_id)

    def boxes(self) -> list[Box]:
        """Return the current rows of all boxes."""
        return list(self._boxes.values())

    @property
    def retries(self) -> tuple[int, int]:
        """Number of boxes to remove again, and of boxes to settle again."""
        return len(self._half_removed), len(self._unsettled)

    def due(self, box: Box) -> Due | None:
        """Return the next automatic action on the box, or None."""
        return self._due(box, Now.read(self._clock))

    def ripe(self, box: Box) -> Due | None:
        """Return the action that is due for the box now, or None."""
        return self._ripe(box, Now.read(self._clock))

    def next_act(self, box: Box) -> NextAct | None:
        """Return the next action and its wall-clock time, for `ls`."""
        now = Now.read(self._clock)
        next_due = self._due(box, now)
        if next_due is None:
            return None
        return NextAct(next_due.act.value, now.shown(next_due.moment))

    def removal(self, box: Box) -> Removal | None:
        """Return the next removal of the box if nobody uses it until then, for users."""
        now = Now.read(self._clock)
        next_removal = removal(self._facts(box), self._policy, now)
        if next_removal is None:
            return None
        why: Literal["deadline", "unused"] = "deadline" if next_removal.urgent else "unused"
        return Removal(now.shown(next_removal.moment), why)

    def deadline_passed(self, box: Box) -> bool:
        """Return whether the deadline of the box has passed."""
        ripe = self.ripe(box)
        return ripe is not None and ripe.urgent

    def unsettled(self, box: Box, why: BaseException) -> None:
        """Settle the box later; `why` is logged the first time."""
        if box.id not in self._unsettled:
            _log.warning("box is %s: %s; trying again", box.state, why, extra={"box": box.id})
        self._unsettled[box.id] = box

    def retry_removal(self, box: Box, why: Exception) -> None:
        """Complete the removal of the box later; `why` is logged the first time."""
        if box.id not in self._half_removed:
            _log.warning("%s; trying again", why, extra={"box": box.id})
        self._half_removed[box.id] = box

    def start(self, actions: TimerActions) -> None:
        """Start checking the boxes and calling `actions`."""
        self._actions = actions
        self._retry_at = self._clock.monotonic() + RETRY
        self._upkeep_at = self._clock.monotonic() + UPKEEP
        self._loop.start(self._run(), name="box timers")

    async def close(self) -> None:
        """Stop. Running actions complete; waiting ones are dropped."""
        self._closing = True
        await self._loop.close()
        await self._work.join()

    def look(self) -> None:
        """Start the actions that are due now. Does nothing before `start`."""
        actions = self._actions
        if actions is None:
            return
        present = Now.read(self._clock)
        for box in self.boxes():
            try:
                ripe = self._ripe(box, present)
            except Exception:
                self._log_bug(box.id)
                continue
            if ripe is not None:
                work = partial(actions.act, box, ripe)
                self._begin(box.id, work, urgent=ripe.urgent)
        now = self._clock.monotonic()
        if now >= self._retry_at:
            self._retry_at = now + RETRY
            for box in list(self._unsettled.values()):
                self._begin(box.id, partial(self._settled, actions, box))
            for box in list(self._half_removed.values()):
                self._begin(box.id, partial(self._cleared, actions, box))
        if now >= self._upkeep_at:
            self._upkeep_at = now + UPKEEP
            self._begin(_NO_BOX, actions.upkeep)

    async def idle(self) -> None:
        """Wait until all running actions are done."""
        await self._work.join()

    def _due(self, box: Box, now: Now) -> Due | None:
        return due(self._facts(box), self._policy, now)

    def _ripe(self, box: Box, now: Now) -> Due | None:
        next_due = self._due(box, now)
        return next_due if next_due is not None and next_due.ripe(now) else None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self.look()

    def _begin(
        self, box_id: str, work: Callable[[], Awaitable[None]], *, urgent: bool = False
    ) -> None:
        key = (box_id, urgent)
        if key not in self._busy:
            task = self._work.start(
                self._guarded(box_id, work, self._slots[urgent]), name=f"due: box {box_id}"
            )
            self._busy.add(key)
            task.add_done_callback(lambda _: self._busy.discard(key))

    async def _guarded(
        self, key: str, work: Callable[[], Awaitable[None]], slots: asyncio.Semaphore
    ) -> None:
        async with slots:
            if self._closing:
                return
            try:
                await work()
            except BoxdError as error:
                if key not in self._logged:
                    _log.warning(
                        "action on the box failed: %s; trying again", error, extra={"box": key}
                    )
                self._logged.add(key)
            except Exception:
                self._log_bug(key)
            else:
                self._logged.discard(key)

    def _log_bug(self, key: str) -> None:
        """Log the current exception once: a bug with one box must not delay the others."""
        if key not in self._logged:
            _log.exception("action on the box failed; trying again", extra={"box": key})
        self._logged.add(key)

    async def _settled(self, actions: TimerActions, box: Box) -> None:
        await actions.settle(box)
        self._unsettled.pop(box.id, None)

    async def _cleared(self, actions: TimerActions, box: Box) -> None:
        await actions.clear(box)
        self._half_removed.pop(box.id, None)
