"""Activity: which boxes are in use, and how long the others have been unused.

The rules of `schedule` use these facts.

A box is in use while it is held (by an SSH channel, an exec, a terminal or a proxied request), and
while its agent reports detached shells or background commands. Lists, resolved references and
keep-alives take no hold, so they do not count as use.

Critical section: none. No method awaits, so each is atomic on the event loop. The time of the last
use stays in memory, and the daemon writes it to the row regularly: an API client may use a box many
times per second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from boxd.boxes.timing.moments import Now
from boxd.boxes.timing.schedule import Facts
from boxd.model.box import BoxState
from boxd.model.presence import Presence

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from boxd.boxes.presence.attachments import Attachments
    from boxd.boxes.timing.elapsed_time import ElapsedTimeStore
    from boxd.boxes.timing.moments import BootMoment
    from boxd.clock import Clock
    from boxd.model.box import Box

FIRST_PAUSE = timedelta(minutes=1)
"""Pause after a failed automatic suspension; doubled after each further failure."""
LONGEST_PAUSE = timedelta(minutes=30)
MARK_EVERY = timedelta(minutes=1)
"""Interval at which a box in use is marked as used. A killed daemon loses no more than this."""


@dataclass(slots=True)
class _Use:
    """The use of one box, as far as this daemon has observed it."""

    presence: Presence = field(default_factory=Presence)
    last: BootMoment | None = None
    written: bool = True
    paused_until: BootMoment | None = None
    pause: timedelta = FIRST_PAUSE


_UNUSED = _Use()
"""For boxes without any known use; read only."""


class Activity:
    """Tracks the use of boxes. `suspendable` returns whether the backend can suspend boxes."""

    def __init__(
        self,
        clock: Clock,
        elapsed_time: ElapsedTimeStore,
        attachments: Attachments,
        *,
        suspendable: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._elapsed_time = elapsed_time
        self._attachments = attachments
        self._suspendable = suspendable
        self._uses: dict[str, _Use] = {}

    def facts(self, box: Box) -> Facts:
        """Return the known facts about a box, given its row."""
        use = self._uses.get(box.id, _UNUSED)
        stored = None if box.idle_since is None else self._elapsed_time.moment(box.idle_since)
        last_uses = [moment for moment in (use.last, stored) if moment is not None]
        pinned = None if box.pinned_until is None else self._elapsed_time.moment(box.pinned_until)
        return Facts(
            state=box.state,
            deadline=box.deadline,
            grace=box.grace,
            since=self._elapsed_time.moment(box.since),
            last_used=max(last_uses, default=None),
            holds=self._attachments.count(box.id),
            detached=sum(use.presence),
            pinned_until=pinned,
            paused_until=use.paused_until,
            auto_suspend=box.auto_suspend,
            durable=box.durable,
            ephemeral=box.ephemeral,
            confidential=box.confidential or box.containers,
            suspendable=self._suspendable(),
        )

    def why(self, box: Box) -> dict[str, int]:
        """Return the reasons that keep the box awake, and the number for each.

        The reasons are holds, detached shells, background commands and a pin.
        """
        why = self._attachments.why(box.id)
        shells, commands = self._uses.get(box.id, _UNUSED).presence
        if shells and box.state is BoxState.RUNNING:
            why["detached shell" if shells == 1 else "detached shells"] = shells
        if commands and box.state is BoxState.RUNNING:
            why["command"] = commands
        if self.pinned_until(box) is not None:
            why["pin"] = 1
        return why

    def pinned_until(self, box: Box) -> datetime | None:
        """Return the wall-clock time at which the pin of the box ends, or None."""
        if box.pinned_until is None:
            return None
        now, end = Now.read(self._clock), self._elapsed_time.moment(box.pinned_until)
        return now.shown(end) if now.left(end) > timedelta(0) else None

    def report(self, box_id: str, presence: Presence) -> None:
        """Store what keeps a box awake without a client, as its agent reports it."""
        use = self._uses.setdefault(box_id, _Use())
        if any(use.presence) and not any(presence):
            self._used(use)
            self.worked_in(box_id)
        use.presence = presence

    def left(self, box_id: str) -> None:
        """Record that the last hold of the box ended."""
        self._used(self._uses.setdefault(box_id, _Use()))

    def worked_in(self, box_id: str) -> None:
        """Record that a user worked in the box, which may have removed an obstacle."""
        use = self._uses.get(box_id)
        if use is not None and use.pause > FIRST_PAUSE:
            use.paused_until, use.pause = None, FIRST_PAUSE

    def asleep(self, box_id: str) -> None:
        """Record that the box stopped: its shells, commands and pause no longer count."""
        use = self._uses.get(box_id)
        if use is not None:
            use.presence, use.paused_until, use.pause = Presence(), None, FIRST_PAUSE

    def forget(self, box_id: str) -> None:
        """Forget a removed box."""
        self._uses.pop(box_id, None)

    def pause(self, box_id: str, span: timedelta | None = None) -> None:
        """Postpone automatic suspension of the box by `span`.

        By default, the time grows with each failure.
        """
        use = self._uses.setdefault(box_id, _Use())
        if span is None:
            span, use.pause = use.pause, min(2 * use.pause, LONGEST_PAUSE)
        use.paused_until = Now.read(self._clock).boot + span

    def unwritten(self, known: Callable[[str], bool]) -> dict[str, datetime]:
        """Return the marks of last uses, by box id, that the rows do not have yet.

        The method treats the returned marks as written. It returns boxes in use every `MARK_EVERY`.
        `known` returns whether a box has a row.
        """
        marks, now = {}, Now.read(self._clock).boot
        busy = {box_id for box_id, use in self._uses.items() if any(use.presence)}
        for box_id in filter(known, self._attachments.held() | busy):
            use = self._uses.setdefault(box_id, _Use())
            if use.last is None or now - use.last >= MARK_EVERY:
                self._used(use)
        for box_id, use in self._uses.items():
            if use.last is not None and not use.written:
                marks[box_id], use.written = self._elapsed_time.of(use.last), True
        return marks

    def write_again(self, box_id: str) -> None:
        """Include the box's mark in the next `unwritten` again, because the write failed."""
        if box_id in self._uses:
            self._uses[box_id].written = False

    def _used(self, use: _Use) -> None:
        use.last, use.written = Now.read(self._clock).boot, False
