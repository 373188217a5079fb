"""What happens to boxes by itself: the timers say when, here it is done, decided again under the
box's lock."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from boxd.boxes.dooms import Doomed
from boxd.boxes.schedule import Act
from boxd.boxes.suspend import InUse
from boxd.errors import Conflict, DiskFull
from boxd.model.box import BoxState

if TYPE_CHECKING:
    import asyncio

    from boxd.boxes.changes import Changes
    from boxd.boxes.parts import Parts
    from boxd.boxes.schedule import Due
    from boxd.boxes.suspend import Sleep
    from boxd.model.box import Box

_log = logging.getLogger(__name__)


class DueActs:
    """See the module; it is what `timers.Acts` asks for. Holds no state of its own."""

    def __init__(self, parts: Parts, *, sleep: Sleep, changes: Changes) -> None:
        self._store = parts.store
        self._rows = parts.rows
        self._assembly = parts.assembly
        self._sleep = sleep
        self._changes = changes
        self._locks = parts.locks
        self._marks = parts.marks
        self._activity = parts.activity
        self._timers = parts.timers
        self._dooms = parts.dooms

    async def act(self, box: Box, due: Due) -> None:
        """Removes or suspends the box if that is still due. A suspension that fails pauses.

        A deadline does not wait for what is done with the box; a suspension is looked at again
        later when the box is in somebody's hands.
        """
        lock = self._locks.box(box)
        if due.urgent:
            with self._dooms.doom(box):
                await self._act(box, due, lock)
        elif due.act is Act.REMOVE:
            await self._act(box, due, lock)
        elif not lock.locked():
            async with self._locks.standstills:
                await self._act(box, due, lock)

    async def _act(self, box: Box, due: Due, lock: asyncio.Lock) -> None:
        async with lock:
            present = await self._store.box(box.id)
            if present is None:
                self._timers.unwatch(box)
                return
            self._timers.watch(present)
            still = self._timers.ripe(present)
            if still is None or still.act is not due.act:
                return
            _log.info("box %s", still.why, extra={"box": box.id})
            if still.act is Act.REMOVE:
                await self._changes.destroy(present, still.why)
            else:
                await self._suspend(present)

    async def _suspend(self, box: Box) -> None:
        try:
            await self._sleep.suspend(box, unasked=True)
        except InUse:
            self._activity.left(box.id)
        except Doomed:
            _log.debug("not suspended, as it is removed", extra={"box": box.id})
        except (Conflict, DiskFull) as error:
            self._activity.pause(box.id)
            _log.warning("%s; it runs on, and is tried again later", error, extra={"box": box.id})

    async def settle(self, box: Box) -> None:
        """Brings a box to a steady state that a failure left between two."""
        async with self._locks.box(box):
            present = await self._store.box(box.id)
            if present is None:
                return
            if present.state is BoxState.CREATING:
                await self._changes.destroy(present)
            elif present.state in (BoxState.SUSPENDING, BoxState.RESUMING):
                await self._changes.settle(present)
            elif present.state is BoxState.RUNNING:
                found = await self._assembly.look(box.id)
                stuck = found is None or found.frozen or not found.running
                if stuck or await self._assembly.tunnel(present) is None:
                    await self._changes.settle(present)

    async def clear(self, box: Box) -> None:
        """What a removal could not do. The box's row, if any, is in nobody else's hands."""
        if await self._store.box(box.id) is not None:
            async with self._locks.box(box):
                await self._rows.remove(box)
        await self._assembly.destroy(box)

    async def upkeep(self) -> None:
        """Writes down when boxes were last used, and where the clock of the marks stands."""
        marks = self._activity.unwritten(self._timers.knows)
        try:
            await self._marks.keep(self._store)
            for box_id in list(marks):
                await self._store.change_box(box_id, idle_since=marks[box_id])
                del marks[box_id]
        finally:
            for box_id in marks:
                self._activity.write_again(box_id)
