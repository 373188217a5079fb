"""Who uses a box, and since when nobody does: what the rules of `schedule` are asked with.

A box is used while something is attached to it (an SSH channel, an exec, a terminal, a proxied
request: whatever takes a hold) and while its agent reports shells that nobody is attached to.
Looking at it is no use: lists, references that are resolved and keep-alives take no hold.

No method awaits, so each is atomic on the event loop. When a box was last used is kept here and
written to its row every now and then, as an API may use a box many times a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from boxd.boxes.moments import Now
from boxd.boxes.schedule import Facts
from boxd.model.box import BoxState

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from boxd.boxes.attachments import Attachments
    from boxd.boxes.marks import Marks
    from boxd.boxes.moments import BootMoment
    from boxd.clock import Clock
    from boxd.model.box import Box

FIRST_PAUSE = timedelta(minutes=1)
"""After an automatic suspension that failed; doubled with each further one."""
LONGEST_PAUSE = timedelta(minutes=30)
MARK_EVERY = timedelta(minutes=1)
"""A box in use is marked as used so often: a daemon that is killed forgets no more than this."""


@dataclass(slots=True)
class _Use:
    """What this daemon knows of the use of one box."""

    shells: int = 0
    last: BootMoment | None = None
    written: bool = True
    paused_until: BootMoment | None = None
    pause: timedelta = FIRST_PAUSE


_UNUSED = _Use()
"""Of a box of which nothing is known; nobody changes it."""


class Activity:
    """See the module. `suspendable` tells whether the backend can suspend boxes on this host."""

    def __init__(
        self,
        clock: Clock,
        marks: Marks,
        attachments: Attachments,
        *,
        suspendable: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._marks = marks
        self._attachments = attachments
        self._suspendable = suspendable
        self._uses: dict[str, _Use] = {}

    def facts(self, box: Box) -> Facts:
        """What is known of a box as its row tells it."""
        use = self._uses.get(box.id, _UNUSED)
        stored = None if box.idle_since is None else self._marks.moment(box.idle_since)
        used = [moment for moment in (use.last, stored) if moment is not None]
        pinned = None if box.pinned_until is None else self._marks.moment(box.pinned_until)
        return Facts(
            state=box.state,
            deadline=box.deadline,
            grace=box.grace,
            since=self._marks.moment(box.since),
            last_used=max(used, default=None),
            holds=self._attachments.count(box.id),
            shells=use.shells,
            pinned_until=pinned,
            paused_until=use.paused_until,
            auto_suspend=box.auto_suspend,
            durable=box.durable,
            ephemeral=box.ephemeral,
            confidential=box.confidential,
            suspendable=self._suspendable(),
        )

    def why(self, box: Box) -> dict[str, int]:
        """What keeps the box awake, and how many of each: holds, detached shells, a pin."""
        why = self._attachments.why(box.id)
        shells = self._uses.get(box.id, _UNUSED).shells
        if shells and box.state is BoxState.RUNNING:
            why["detached shell" if shells == 1 else "detached shells"] = shells
        if self.pinned_until(box) is not None:
            why["pin"] = 1
        return why

    def pinned_until(self, box: Box) -> datetime | None:
        """What the wall clock will show when the pin of the box ends; None: it has none."""
        if box.pinned_until is None:
            return None
        now, end = Now.read(self._clock), self._marks.moment(box.pinned_until)
        return now.shown(end) if now.left(end) > timedelta(0) else None

    def report(self, box_id: str, shells: int) -> None:
        """The agent tells how many shells there are that nobody is attached to."""
        use = self._uses.setdefault(box_id, _Use())
        if use.shells and not shells:
            self._used(use)
        use.shells = shells

    def left(self, box_id: str) -> None:
        """The last hold on the box ended."""
        self._used(self._uses.setdefault(box_id, _Use()))

    def asleep(self, box_id: str) -> None:
        """The box does not run any more: no shell of it counts, and no pause."""
        use = self._uses.get(box_id)
        if use is not None:
            use.shells, use.paused_until, use.pause = 0, None, FIRST_PAUSE

    def forget(self, box_id: str) -> None:
        """The box is gone."""
        self._uses.pop(box_id, None)

    def pause(self, box_id: str, span: timedelta | None = None) -> None:
        """Not being used has no effect on it for `span`; by default longer each time."""
        use = self._uses.setdefault(box_id, _Use())
        if span is None:
            span, use.pause = use.pause, min(2 * use.pause, LONGEST_PAUSE)
        use.paused_until = Now.read(self._clock).boot + span

    def unwritten(self, known: Callable[[str], bool]) -> dict[str, datetime]:
        """Marks of last uses by box id that their rows do not know; they count as written now.

        Boxes in use are among them every `MARK_EVERY`. `known`: whether a box has a row.
        """
        marks, now = {}, Now.read(self._clock).boot
        shells = {box_id for box_id, use in self._uses.items() if use.shells}
        for box_id in filter(known, self._attachments.held() | shells):
            use = self._uses.setdefault(box_id, _Use())
            if use.last is None or now - use.last >= MARK_EVERY:
                self._used(use)
        for box_id, use in self._uses.items():
            if use.last is not None and not use.written:
                marks[box_id], use.written = self._marks.of(use.last), True
        return marks

    def write_again(self, box_id: str) -> None:
        """The mark could not be written."""
        if box_id in self._uses:
            self._uses[box_id].written = False

    def _used(self, use: _Use) -> None:
        use.last, use.written = Now.read(self._clock).boot, False
