"""Automatic actions on boxes: removal, suspension and repair.

The timers report that an action is due. `DueActions` decides again under the box's lock, and acts.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from boxd.boxes.lifecycle.pending_removals import BeingRemoved
from boxd.boxes.lifecycle.suspend import InUse
from boxd.boxes.timing.schedule import Act
from boxd.errors import AgentLost, Conflict, DiskFull
from boxd.model.box import BoxState

if TYPE_CHECKING:
    import asyncio

    from boxd.boxes.lifecycle.changes import Changes
    from boxd.boxes.lifecycle.collaborators import Collaborators
    from boxd.boxes.lifecycle.suspend import Sleep
    from boxd.boxes.timing.schedule import Due
    from boxd.model.box import Box

_log = logging.getLogger(__name__)


class DueActions:
    """Implements `timers.TimerActions`. Holds no state."""

    def __init__(self, collaborators: Collaborators, *, sleep: Sleep, changes: Changes) -> None:
        self._store = collaborators.store
        self._repository = collaborators.repository
        self._assembly = collaborators.assembly
        self._sleep = sleep
        self._changes = changes
        self._locks = collaborators.locks
        self._elapsed_time = collaborators.elapsed_time
        self._activity = collaborators.activity
        self._timers = collaborators.timers
        self._pending_removals = collaborators.pending_removals

    async def act(self, box: Box, due: Due) -> None:
        """Remove or suspend the box if that is still due.

        A failed suspension pauses further attempts. A removal at the deadline cancels other work on
        the box. The method skips a suspension while another task holds the box's lock; the timers
        try again.
        """
        lock = self._locks.box(box)
        if due.urgent:
            with self._pending_removals.announce(box):
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
            present_due = self._timers.ripe(present)
            if present_due is None or present_due.act is not due.act:
                return
            _log.info("box %s", present_due.why, extra={"box": box.id})
            if present_due.act is Act.REMOVE:
                await self._changes.destroy(present, present_due.why)
            else:
                await self._suspend(present)

    async def _suspend(self, box: Box) -> None:
        try:
            await self._sleep.suspend(box, unasked=True)
        except InUse:
            self._activity.left(box.id)
        except BeingRemoved:
            _log.debug("not suspended: the box is being removed", extra={"box": box.id})
        except (Conflict, DiskFull) as error:
            self._activity.pause(box.id)
            _log.warning(
                "%s; the box stays awake, and the daemon tries again later",
                error,
                extra={"box": box.id},
            )

    async def settle(self, box: Box) -> None:
        """Bring a box whose last change failed to a steady state."""
        async with self._locks.box(box):
            present = await self._store.box(box.id)
            if present is None:
                return
            if present.state is BoxState.CREATING:
                await self._changes.destroy(present)
            elif present.state in (BoxState.SUSPENDING, BoxState.RESUMING):
                await self._changes.settle(present)
            elif present.state is BoxState.RUNNING:
                host_box = await self._assembly.look(box.id)
                stuck = host_box is None or host_box.frozen or not host_box.running
                if stuck or not await self._lives(present):
                    await self._changes.settle(present)

    async def _lives(self, box: Box) -> bool:
        """Return whether the processes of a box run. `agent_watch` handles a lost agent."""
        with suppress(AgentLost):
            return await self._assembly.tunnel(box) is not None
        return True

    async def clear(self, box: Box) -> None:
        """Complete an interrupted removal. No other task uses such a box."""
        if await self._store.box(box.id) is not None:
            async with self._locks.box(box):
                await self._repository.remove(box)
        await self._assembly.destroy(box)

    async def upkeep(self) -> None:
        """Store when boxes were last used, and the value of the elapsed-time clock."""
        last_uses = self._activity.unwritten(self._timers.knows)
        try:
            await self._elapsed_time.keep(self._store)
            for box_id in list(last_uses):
                await self._store.change_box(box_id, idle_since=last_uses[box_id])
                del last_uses[box_id]
        finally:
            for box_id in last_uses:
                self._activity.write_again(box_id)
