"""Boxes at the start and at the end of the service: what an earlier daemon left, and ending all.

Each box is dealt with under its lock, a few at the same time.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from boxd.boxes.suspend import FROM_DISK
from boxd.errors import BoxdError, Unavailable
from boxd.model.box import BoxState

if TYPE_CHECKING:
    from boxd.backends.interface import BackendBox
    from boxd.boxes.changes import Changes
    from boxd.boxes.parts import Parts
    from boxd.boxes.suspend import Sleep
    from boxd.model.box import Box

STOPPED = f"stopped with the service; {FROM_DISK}"
SLEEPS = "suspended with the service"
HOST_RESTARTED = f"the host restarted; {FROM_DISK}"
STARTED_AGAIN = "the host restarted; started again from its disk"
BOOT = "boot"
"""Setting: which start of the host the last daemon lived in."""
SUSPEND_TIMEOUT = 10.0
"""Seconds that one box may take to be suspended at the end; then it is stopped."""
ENDED = "ended with the host"
"""Setting: ids of the boxes that ran when the host restarted and are to be started again."""
ADOPTED_PAUSE = timedelta(minutes=1)
"""An adopted box that runs counts as used until its agent can have told of its shells, and clients
can be back that were attached."""
_PARALLEL = 4
"""Boxes that are stopped or adopted at the same time."""

_log = logging.getLogger(__name__)


class Adoption:
    """See the module."""

    def __init__(self, parts: Parts, *, sleep: Sleep, changes: Changes) -> None:
        self._store = parts.store
        self._clock = parts.clock
        self._assembly = parts.assembly
        self._sleep = sleep
        self._changes = changes
        self._locks = parts.locks
        self._activity = parts.activity
        self._attachments = parts.attachments
        self._timers = parts.timers
        self._host_restarted = False
        self._stopping = False

    async def adopt_all(self, *, stopping: bool = False) -> None:
        """Compares every row with the host; destroys boxes of the backend that have no row.

        A box that cannot be adopted is logged, and tried again by the timers. `stopping`: only to
        stop them all, so that no time of the service counts, and nothing is started again.
        """
        self._stopping = stopping
        present = await self._assembly.present()
        boxes = await self._store.all_boxes()
        await self._remember_ended(boxes)
        known = {box.id for box in boxes}
        limit = asyncio.Semaphore(_PARALLEL)

        async def adopt(box: Box) -> None:
            async with limit, self._locks.box(box):
                try:
                    await self._adopt(box, present.get(box.id))
                except (BoxdError, OSError) as error:
                    # One box must not keep the others away.
                    self._timers.unsettled(box, error)

        async def discard(box_id: str) -> None:
            async with limit:
                _log.info("box without a record destroyed", extra={"box": box_id})
                try:
                    await self._assembly.backend.destroy(box_id)
                    await self._assembly.remove_directory(box_id)
                except (BoxdError, OSError) as error:
                    _log.error("not destroyed: %s", error, extra={"box": box_id})

        async with asyncio.TaskGroup() as group:
            for box in boxes:
                group.create_task(adopt(box))
            for box_id in (present.keys() | await self._assembly.directories()) - known:
                group.create_task(discard(box_id))

    async def _remember_ended(self, boxes: list[Box]) -> None:
        """Which boxes are to be started again is written before their rows tell that they ended,
        so that it is done even if this daemon does not come to it."""
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
        """Starts the boxes that ran when the host restarted; one that fails is logged."""
        try:
            ended = await self._ended()
            boxes = [box for box in await self._store.all_boxes() if box.id in ended]
            await self._start_all(boxes)
            if ended:
                await self._store.put_setting(ENDED, "")
        except Unavailable as error:
            _log.warning("boxes not started again: %s; the next start does it", error)

    async def _start_all(self, boxes: list[Box]) -> None:
        limit = asyncio.Semaphore(_PARALLEL)

        async def start(box: Box) -> None:
            async with limit, self._locks.box(box):
                try:
                    present = await self._changes.present(box)
                    if present.state is BoxState.SUSPENDED:
                        await self._changes.wake(present, detail=STARTED_AGAIN)
                except BoxdError as error:
                    _log.warning("box not started again: %s", error, extra={"box": box.id})

        await asyncio.gather(*(start(box) for box in boxes))

    async def release_unused(self) -> None:
        """Ends mounts of boxes that died, or were removed, with the last daemon."""
        drives = self._assembly.drives
        if drives is None:
            return
        boxes = [box for box in await self._store.all_boxes() if box.drive]
        running = [box for box in boxes if box.state is BoxState.RUNNING]
        try:
            await drives.release_unused({(box.owner, box.workspace) for box in running})
        except BoxdError as error:
            _log.warning("idle mounts not ended: %s", error)

    async def stop_all(self) -> None:
        """Suspends every running box, or stops it; Unavailable at the end when some do neither."""
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
        storable = not box.confidential and self._attachments.storable(box.id)
        if self._assembly.backend.capabilities().suspend and storable:
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

    async def _adopt(self, box: Box, found: BackendBox | None) -> None:
        """Compares a row with the backend: `found` None means that it holds no such box."""
        over = self._timers.deadline_passed(box) and not self._stopping
        if over or box.ephemeral or box.state is BoxState.CREATING:
            await self._changes.destroy(box)
            return
        self._timers.watch(box)
        if box.state in (BoxState.SUSPENDED, BoxState.FAILED):
            await self._sleep.check_asleep(box, found)
            return
        died = {"died": HOST_RESTARTED} if self._host_restarted else {}
        box = await self._sleep.settle(box, found, **died)
        if box.state is BoxState.RUNNING:
            self._activity.pause(box.id, ADOPTED_PAUSE)
            await self._assembly.listen(box)
            if box.drive and self._assembly.drives is not None:
                await self._reattach_adopted(box)

    async def _reattach_adopted(self, box: Box) -> None:
        """The mount may have died with the last daemon. A box without its drive still runs."""
        drives = self._assembly.drives
        if drives is None:
            return
        try:
            await drives.prepare(box.owner, box.workspace)
            await drives.attach(box)
        except BoxdError as error:
            _log.warning("drive not attached: %s", error, extra={"box": box.id})
