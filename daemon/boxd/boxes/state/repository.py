"""The rows of boxes. All writes go through `BoxRepository`, which also updates the timers, the box
index and the change feed.

A change of state records when it happened and resets the step number of the previous state.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Unpack

    from boxd.boxes.state.box_index import BoxIndex
    from boxd.boxes.state.feed import Feed
    from boxd.boxes.timing.elapsed_time import ElapsedTimeStore
    from boxd.boxes.timing.timers import Timers
    from boxd.model.box import Box, BoxChanges, BoxNotes, BoxState
    from boxd.store.interface import ControlStore


class BoxRepository:
    """Writes box rows and publishes each change.

    Callers hold the box's lock. Methods raise what ControlStore raises.
    """

    def __init__(
        self,
        store: ControlStore,
        elapsed_time: ElapsedTimeStore,
        timers: Timers,
        box_index: BoxIndex,
        feed: Feed,
    ) -> None:
        self._store = store
        self._elapsed_time = elapsed_time
        self._timers = timers
        self._box_index = box_index
        self._feed = feed

    async def add(self, box: Box) -> Box:
        """Add the row of a new box; `since` is the current time. Returns the stored box."""
        box = replace(box, since=self._elapsed_time.now())
        await self._store.add_box(box)
        self._publish(box)
        return box

    async def change(
        self, box: Box, after: BoxState, detail: str = "", **changes: Unpack[BoxChanges]
    ) -> Box:
        """Move a box to another state; set `since` to now and `step` to 0 unless `changes` do."""
        fields: BoxChanges = {"since": self._elapsed_time.now(), "step": 0, **changes}
        box = await self._store.change_state(box.id, box.state, after, detail, **fields)
        self._publish(box)
        return box

    async def note(self, box: Box, **changes: Unpack[BoxNotes]) -> Box:
        """Change fields of a box without changing its state."""
        await self._store.change_box(box.id, **changes)
        box = replace(box, **changes)
        self._publish(box)
        return box

    async def remove(self, box: Box) -> None:
        """Delete the row of a box."""
        await self._store.remove_box(box.id)
        self._timers.unwatch(box)
        self._box_index.forget(box)
        self._feed.fleet(box.owner, box.workspace)

    def _publish(self, box: Box) -> None:
        self._timers.watch(box)
        self._box_index.put(box)
        self._feed.fleet(box.owner, box.workspace)
