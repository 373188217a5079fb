"""Pins and auto-suspend: what keeps a box awake on purpose. From the box itself, or its owner.

A box has at most one pin; a new one takes its place. It holds what is due by elapsed time, never
the deadline, and wakes nothing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from boxd.boxes.moments import Now
from boxd.errors import BadRequest, NotFound
from boxd.names.duration import format_duration

if TYPE_CHECKING:
    from boxd.boxes.changes import Changes
    from boxd.boxes.parts import Parts
    from boxd.model.box import Box

DEFAULT_PIN = timedelta(hours=2)
LONGEST_PIN = timedelta(days=7)
MAX_WHY = 200
"""Characters that tell what a pin is for."""


class Pins:
    """See the module. Holds no state of its own; every change is made under the box's lock."""

    def __init__(self, parts: Parts, changes: Changes) -> None:
        self._store = parts.store
        self._rows = parts.rows
        self._clock = parts.clock
        self._marks = parts.marks
        self._activity = parts.activity
        self._changes = changes
        self._locks = parts.locks

    async def pin(self, box: Box, span: timedelta, why: str) -> Box:
        """Keeps the box awake for `span` from now. BadRequest, NotFound."""
        if span <= timedelta(0):
            raise BadRequest("the time of a pin must be positive; for example --for 2h")
        if span > LONGEST_PIN:
            raise BadRequest(f"a pin holds for at most {format_duration(LONGEST_PIN)}")
        if len(why) > MAX_WHY or not why.isprintable():
            raise BadRequest(f"the reason of a pin is at most {MAX_WHY} printable characters")
        async with self._locks.box(box):
            present = await self._changes.present(box)
            until = self._marks.of(Now.read(self._clock).boot + span)
            return await self._rows.note(present, pinned_until=until, pin_why=why)

    async def unpin(self, box: Box) -> Box:
        """Takes the pin away, if there is one. NotFound."""
        async with self._locks.box(box):
            present = await self._changes.present(box)
            return await self._rows.note(present, pinned_until=None, pin_why="")

    async def auto_suspend(self, box: Box, *, on: bool) -> Box:
        """Whether anything is due for the box by elapsed time, until it is said anew. NotFound."""
        async with self._locks.box(box):
            present = await self._changes.present(box)
            return await self._rows.note(present, auto_suspend=on)

    async def request(self, box_id: str, verb: str, params: dict[str, Any]) -> dict[str, object]:
        """`pin`, `unpin`, `auto_suspend` or `life`, asked for by the agent of a box.

        Each is answered with what keeps the box awake. BadRequest, NotFound.
        """
        box = await self._store.box(box_id)
        if box is None:
            raise NotFound("no such box")
        if verb == "pin":
            box = await self.pin(box, timedelta(seconds=params["for_s"]), params["why"])
        elif verb == "unpin":
            box = await self.unpin(box)
        elif verb == "auto_suspend":
            box = await self.auto_suspend(box, on=params["on"])
        elif verb != "life":
            raise BadRequest(f"unknown request {verb}")
        until = self._activity.pinned_until(box)
        return {
            "pinned_until": None if until is None else until.isoformat(timespec="seconds"),
            "pin_why": "" if until is None else box.pin_why,
            "auto_suspend": box.auto_suspend,
        }
