"""What everything that changes boxes shares: one of each for a daemon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.boxes.activity import Activity
from boxd.boxes.attachments import Attachments
from boxd.boxes.census import Census
from boxd.boxes.dooms import Dooms
from boxd.boxes.ends import Ends
from boxd.boxes.feed import Feed
from boxd.boxes.locks import Locks
from boxd.boxes.marks import Marks
from boxd.boxes.rows import Rows
from boxd.boxes.timers import Timers

if TYPE_CHECKING:
    from boxd.boxes.assembly import Assembly
    from boxd.boxes.policy import Policy
    from boxd.clock import HostClock
    from boxd.store.interface import ControlStore


@dataclass(frozen=True, slots=True)
class Parts:
    """See the module; `rows` writes to `store`."""

    store: ControlStore
    clock: HostClock
    assembly: Assembly
    locks: Locks
    dooms: Dooms
    attachments: Attachments
    marks: Marks
    activity: Activity
    timers: Timers
    census: Census
    rows: Rows
    feed: Feed
    ends: Ends

    @classmethod
    def made(
        cls, store: ControlStore, clock: HostClock, assembly: Assembly, policy: Policy
    ) -> Parts:
        """Those that are not given are new."""
        feed = Feed()
        attachments, marks = Attachments(feed), Marks(clock)
        activity = Activity(
            clock,
            marks,
            attachments,
            suspendable=lambda: assembly.backend.capabilities().suspend,
        )
        timers = Timers(clock, facts=activity.facts, policy=policy)
        census = Census()
        rows = Rows(store, marks, timers, census, feed)
        return cls(
            *(store, clock, assembly, Locks(), Dooms(), attachments, marks, activity, timers),
            *(census, rows, feed, Ends(feed, clock)),
        )
