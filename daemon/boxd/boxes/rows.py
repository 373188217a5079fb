"""The rows of boxes: every write goes through here, so that timers and census know what is
stored, and who listens hears of it.

A change of state marks when it was made, and ends the numbered steps of the one before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Unpack

    from boxd.boxes.census import Census
    from boxd.boxes.feed import Feed
    from boxd.boxes.marks import Marks
    from boxd.boxes.timers import Timers
    from boxd.model.box import Box, BoxChanges, BoxNotes, BoxState
    from boxd.store.interface import ControlStore


class Rows:
    """See the module; raises what ControlStore raises. Called under the box's lock."""

    def __init__(
        self, store: ControlStore, marks: Marks, timers: Timers, census: Census, feed: Feed
    ) -> None:
        self._store = store
        self._marks = marks
        self._timers = timers
        self._census = census
        self._feed = feed

    async def add(self, box: Box) -> Box:
        """Records a new box; its state counts from now."""
        box = replace(box, since=self._marks.now())
        await self._store.add_box(box)
        self._known(box)
        return box

    async def change(
        self, box: Box, after: BoxState, detail: str = "", **changes: Unpack[BoxChanges]
    ) -> Box:
        """Moves a box to another state; `since` and `step` are set unless told otherwise."""
        wanted: BoxChanges = {"since": self._marks.now(), "step": 0, **changes}
        box = await self._store.change_state(box.id, box.state, after, detail, **wanted)
        self._known(box)
        return box

    async def note(self, box: Box, **changes: Unpack[BoxNotes]) -> Box:
        """Changes a box that stays in its state."""
        await self._store.change_box(box.id, **changes)
        box = replace(box, **changes)
        self._known(box)
        return box

    async def remove(self, box: Box) -> None:
        """Forgets a box."""
        await self._store.remove_box(box.id)
        self._timers.unwatch(box)
        self._census.forget(box)
        self._feed.fleet(box.owner, box.workspace)

    def _known(self, box: Box) -> None:
        self._timers.watch(box)
        self._census.put(box)
        self._feed.fleet(box.owner, box.workspace)
