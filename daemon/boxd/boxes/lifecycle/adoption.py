"""Adopts boxes when the daemon starts, and suspends or stops them when it stops.

This module handles each box under its lock, a few boxes at a time.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from boxd.boxes.lifecycle.suspend import FROM_DISK
from boxd.errors import BoxdError, Unavailable
from boxd.model.box import BoxState

if TYPE_CHECKING:
    from boxd.backends.interface import BackendBox
    from boxd.boxes.lifecycle.changes import Changes
    from boxd.boxes.lifecycle.collaborators import Collaborators
    from boxd.boxes.lifecycle.suspend import Sleep
    from boxd.model.box import Box

STOPPED = f"stopped with the service; {FROM_DISK}"
SLEEPS = "suspended with the service"
HOST_RESTARTED = f"the host restarted; {FROM_DISK}"
STARTED_AGAIN = "started again from its disk after a restart of the host"
BOOT = "boot"
"""Name of the setting that stores the boot id of the host during which the last daemon ran."""
SUSPEND_TIMEOUT = 10.0
"""Seconds that the suspension of one box may take when the daemon stops. After that, the daemon
stops the box."""
ENDED = "ended with the host"
"""Name of the setting that lists the ids of boxes to start again after a restart of the host."""
ADOPTED_PAUSE = timedelta(minutes=1)
"""Time for which an adopted running box counts as used. Meanwhile its agent can report shells, and
clients can reconnect."""
_PARALLEL = 4
"""Number of boxes that are stopped or adopted at the same time."""

_log = logging.getLogger(__name__)


class Adoption:
    """Adopts the boxes of the last daemon, restarts them after a host restart, and stops them."""

    def __init__(self, collaborators: Collaborators, *, sleep: Sleep, changes: Changes) -> None:
        self._store = collaborators.store
        self._clock = collaborators.clock
        self._assembly = collaborators.assembly
        self._sleep = sleep
        self._changes = changes
        self._locks = collaborators.locks
        self._activity = collaborators.activity
        self._attachments = collaborators.attachments
        self._timers = collaborators.timers
        self._host_restarted = False
        self._stopping = False

    async def adopt_all(self, *, stopping: bool = False) -> None:
        """Compare every row with the host, and destroy boxes of the backend that have no row.

        A box that cannot be adopted is logged; the timers try again. `stopping`: the daemon starts
        only to stop all boxes, so it starts none and applies no deadlines.
        """
        self._stopping = stopping
        present = await self._assembly.present()
        boxes = await self._store.all_boxes()
        await self._remember_ended(boxes)
        row_ids = {box.id for box in boxes}
        limit = asyncio.Semaphore(_PARALLEL)

        async def adopt(box: Box) -> None:
            async with limit, self._locks.box(box):
                try:
                    await self._adopt(box, present.get(box.id))
                except (BoxdError, OSError) as error:
                    # A box that cannot be adopted must not prevent the adoption of the others.
                    self._timers.unsettled(box, error)

        async def discard(box_id: str) -> None:
            async with limit:
                _log.info("destroyed a box that has no row", extra={"box": box_id})
                try:
                    await self._assembly.backend.destroy(box_id)
                    await self._assembly.remove_directory(box_id)
                except (BoxdError, OSError) as error:
                    _log.error(
                        "cannot destroy a box that has no row: %s", error, extra={"box": box_id}
                    )

        async with asyncio.TaskGroup() as group:
            for box in boxes:
                group.create_task(adopt(box))
            for box_id in (present.keys() | await self._assembly.directories()) - row_ids:
                group.create_task(discard(box_id))

    async def _remember_ended(self, boxes: list[Box]) -> None:
        """Store which boxes ran when the host restarted.

        The daemon writes the setting before the rows change to `suspended`. So the next daemon
        starts these boxes if this one ends early.
        """
        boot, now = await self._store.setting(BOOT), self._clock.boot_id()
        self._host_restarted = boot is not None and boot != now
        if self._stopping:
            await self._store.put_setting(ENDED, "")
        elif self._host_restarted:
            ran = {box.id for box in boxes if box.state is BoxState.RUNNING}
            await self._store.put_setting(ENDED, " ".join(sorted(ran | await self._ended())))
        if boot != now:
            await self._store.put_setting(BOOT, now)

    async def _ended(self) -> set[str]:
        return set((await self._store.setting(ENDED) or "").split())

    async def start_again(self) -> None:
        """Start the boxes that ran when the host restarted. A failure is logged."""
        try:
            ended = await self._ended()
            boxes = [box for box in await self._store.all_boxes() if box.id in ended]
            await self._start_all(boxes)
            if ended:
                await self._store.put_setting(ENDED, "")
        except Unavailable as error:
            _log.warning(
                "cannot start boxes again: %s; the next start of the daemon tries again", error
            )

    async def _start_all(self, boxes: list[Box]) -> None:
        limit = asyncio.Semaphore(_PARALLEL)

        async def start(box: Box) -> None:
            async with limit, self._locks.box(box):
                try:
                    present = await self._changes.present(box)
                    if present.state is BoxState.SUSPENDED:
                        await self._changes.wake(present, detail=STARTED_AGAIN)
                except BoxdError as error:
                    _log.warning("cannot start the box again: %s", error, extra={"box": box.id})

        await asyncio.gather(*(start(box) for box in boxes))

    async def release_unused(self) -> None:
        """Unmount the drives of boxes that died or were removed with the last daemon."""
        drives = self._assembly.drives
        if drives is None:
            return
        boxes = [box for box in await self._store.all_boxes() if box.drive]
        running = [box for box in boxes if box.state is BoxState.RUNNING]
        try:
            await drives.release_unused({(box.owner, box.workspace) for box in running})
        except BoxdError as error:
            _log.warning("cannot unmount unused drives: %s", error)

    async def stop_all(self) -> None:
        """Suspend every running box, or stop it if that fails.

        Raises Unavailable at the end, naming the boxes that could be neither suspended nor stopped.
        """
        limit = asyncio.Semaphore(_PARALLEL)
        failures: list[str] = []

        async def end(box: Box) -> None:
            async with limit, self._locks.box(box):
                try:
                    await self._end(box)
                except (BoxdError, OSError) as error:
                    failures.append(f"box {box.ref}: {error}")

        async def stop_unrecorded(box_id: str) -> None:
            async with limit:
                await self._assembly.backend.stop(box_id)

        try:
            boxes = await self._store.all_boxes()
        except Unavailable:
            present = await self._assembly.present()
            await asyncio.gather(
                *(stop_unrecorded(one.box_id) for one in present.values() if one.running)
            )
            raise
        await asyncio.gather(*(end(box) for box in boxes if box.state is BoxState.RUNNING))
        if failures:
            raise Unavailable("not stopped cleanly: " + "; ".join(failures))

    async def _end(self, box: Box) -> None:
        if box.ephemeral:
            await self._changes.destroy(box)
            return
        if not self._sleep.why_never(box) and self._attachments.storable(box.id):
            try:
                async with asyncio.timeout(SUSPEND_TIMEOUT):
                    await self._sleep.suspend(box, detail=SLEEPS)
            except (BoxdError, TimeoutError) as error:
                _log.warning("box not suspended: %s; stopping it", error, extra={"box": box.id})
                box = await self._changes.settle(await self._changes.present(box))
            else:
                return
        if box.state is BoxState.RUNNING:
            await self._changes.stop(box, STOPPED)

    async def _adopt(self, box: Box, host_box: BackendBox | None) -> None:
        """Compare a row with the backend. `host_box` is None if the backend has no such box."""
        overdue = self._timers.deadline_passed(box) and not self._stopping
        if overdue or box.ephemeral or box.state is BoxState.CREATING:
            await self._changes.destroy(box)
            return
        self._timers.watch(box)
        if box.state in (BoxState.SUSPENDED, BoxState.FAILED):
            await self._sleep.check_asleep(box, host_box)
            return
        died = {"died": HOST_RESTARTED} if self._host_restarted else {}
        box = await self._sleep.settle(box, host_box, **died)
        if box.state is BoxState.RUNNING:
            self._activity.pause(box.id, ADOPTED_PAUSE)
            await self._assembly.listen(box)
            if box.drive and self._assembly.drives is not None:
                await self._reattach_adopted(box)

    async def _reattach_adopted(self, box: Box) -> None:
        """Attach the drive again, because the mount may have ended with the last daemon.

        The method only logs a failure: the box runs without its drive.
        """
        drives = self._assembly.drives
        if drives is None:
            return
        try:
            await drives.prepare(box.owner, box.workspace)
            await drives.attach(box)
        except BoxdError as error:
            _log.warning("drive not attached: %s", error, extra={"box": box.id})
