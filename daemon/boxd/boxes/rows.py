"""The rows of boxes: every write goes through here, so that the timers know what is stored.

A change of state marks when it was made, and ends the numbered steps of the one before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Unpack

    from boxd.boxes.marks import Marks
    from boxd.boxes.timers import Timers
    from boxd.model.box import Box, BoxChanges, BoxNotes, BoxState
    from boxd.store.interface import ControlStore


class Rows:
    """See the module; raises what ControlStore raises. Called under the box's lock."""

    def __init__(self, store: ControlStore, marks: Marks, timers: Timers) -> None:
        self._store = store
        self._marks = marks
        self._timers = timers

    async def add(self, box: Box) -> Box:
        """Records a new box; its state counts from now."""
        box = replace(box, since=self._marks.now())
        await self._store.add_box(box)
        self._timers.watch(box)
        return box

    async def change(
        self, box: Box, after: BoxState, detail: str = "", **changes: Unpack[BoxChanges]
    ) -> Box:
        """Moves a box to another state; `since` and `step` are set unless told otherwise."""
        wanted: BoxChanges = {"since": self._marks.now(), "step": 0, **changes}
        box = await self._store.change_state(box.id, box.state, after, detail, **wanted)
        self._timers.watch(box)
        return box

    async def note(self, box: Box, **changes: Unpack[BoxNotes]) -> Box:
        """Changes a box that stays in its state."""
        await self._store.change_box(box.id, **changes)
        box = replace(box, **changes)
        self._timers.watch(box)
        return box

    async def remove(self, box: Box) -> None:
        """Forgets a box."""
        await self._store.remove_box(box.id)
        self._timers.unwatch(box)
