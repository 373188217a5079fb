"""Pins, auto-suspend and durability: how a box or its owner overrides the timers on purpose.

A box has at most one pin; a new pin replaces it. A pin postpones actions that are due by elapsed
time, but not the deadline, and it does not wake the box. The owner can remove a pinned box only
with force. A durable box is suspended like any other, and removed only by its owner or at its
deadline.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from boxd.boxes.state.settings import check_lasting
from boxd.boxes.timing.moments import Now
from boxd.errors import BadRequest, NotFound, Pinned
from boxd.names.duration import format_duration

if TYPE_CHECKING:
    from boxd.boxes.lifecycle.changes import Changes
    from boxd.boxes.lifecycle.collaborators import Collaborators
    from boxd.boxes.presence.usage import UsageSampler
    from boxd.model.box import Box

DEFAULT_PIN = timedelta(hours=2)
LONGEST_PIN = timedelta(days=7)
_MIB = 1024 * 1024
MAX_WHY = 200
"""Maximum length of the reason of a pin, in characters."""


class Pins:
    """Stores pins, auto-suspend and durability. Holds no state; takes the locks it needs."""

    def __init__(self, collaborators: Collaborators, changes: Changes, usage: UsageSampler) -> None:
        self._store = collaborators.store
        self._repository = collaborators.repository
        self._clock = collaborators.clock
        self._elapsed_time = collaborators.elapsed_time
        self._activity = collaborators.activity
        self._changes = changes
        self._usage = usage
        self._locks = collaborators.locks

    async def pin(self, box: Box, span: timedelta, why: str) -> Box:
        """Keep the box awake for `span` from now. Raises BadRequest or NotFound."""
        if span <= timedelta(0):
            raise BadRequest("the time of a pin must be positive; for example --for 2h")
        if span > LONGEST_PIN:
            raise BadRequest(f"a pin lasts at most {format_duration(LONGEST_PIN)}")
        if len(why) > MAX_WHY or not why.isprintable():
            raise BadRequest(f"the reason of a pin is at most {MAX_WHY} printable characters")
        async with self._locks.box(box):
            present = await self._changes.present(box)
            until = self._elapsed_time.of(Now.read(self._clock).boot + span)
            return await self._repository.note(present, pinned_until=until, pin_why=why)

    async def unpin(self, box: Box) -> Box:
        """Remove the pin, if there is one. Raises NotFound."""
        async with self._locks.box(box):
            present = await self._changes.present(box)
            return await self._repository.note(present, pinned_until=None, pin_why="")

    def check_removable(self, box: Box) -> None:
        """Raise Pinned, with the end and the reason of the pin, while the box has a pin."""
        until = self._activity.pinned_until(box)
        if until is not None:
            why = f" ({box.pin_why})" if box.pin_why else ""
            raise Pinned(
                f"box {box.ref} is pinned until {until:%Y-%m-%d %H:%M} UTC{why}",
                f"The box was not removed. Remove the pin first: unpin {box.ref}",
            )

    async def auto_suspend(self, box: Box, *, on: bool) -> Box:
        """Enable or disable time-based actions on the box. Raises NotFound."""
        async with self._locks.box(box):
            present = await self._changes.present(box)
            return await self._repository.note(present, auto_suspend=on)

    async def keep(self, box: Box, *, durable: bool) -> Box:
        """Make the box durable, or not. Raises NotFound; BadRequest if the box is ephemeral.

        A box that is no longer durable counts as used now. Otherwise the daemon would at once
        remove a box that has slept for long.
        """
        async with self._locks.box(box):
            present = await self._changes.present(box)
            if durable:
                check_lasting(present)
                return await self._repository.note(present, durable=True)
            if not present.durable:
                return present
            used = self._elapsed_time.of(Now.read(self._clock).boot)
            return await self._repository.note(present, durable=False, idle_since=used)

    async def request(self, box_id: str, verb: str, params: dict[str, Any]) -> dict[str, object]:
        """Answer `pin`, `unpin`, `auto_suspend` or `life`, which the agent of a box requests.

        Each answer contains what keeps the box awake. The answer to `life` also has the disk usage
        of the box, because `df /` in a box shows the volume that all boxes share. Raises BadRequest
        or NotFound.
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
        disk = self._disk(box) if verb == "life" else {}
        return {
            **disk,
            "pinned_until": None if until is None else until.isoformat(timespec="seconds"),
            "pin_why": "" if until is None else box.pin_why,
            "auto_suspend": box.auto_suspend,
        }

    def _disk(self, box: Box) -> dict[str, object]:
        """Return the limit and the last measured use of the box's writable disk, in bytes.

        None: no limit, or not measured yet. Image and drive do not count.
        """
        used = self._usage.last(box.id)
        return {
            "disk_limit": box.disk_mb * _MIB or None,
            "disk_used": None if used is None else used.disk_bytes,
        }
