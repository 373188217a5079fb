"""Boxes at the start and at the end of the service: what an earlier daemon left, and stopping all.

Each box is dealt with under its lock, a few at the same time.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from boxd.boxes.changes import FROM_DISK
from boxd.errors import BoxdError, Unavailable
from boxd.model.box import BoxState

if TYPE_CHECKING:
    from boxd.boxes.assembly import Assembly
    from boxd.boxes.changes import Changes
    from boxd.boxes.locks import Locks
    from boxd.boxes.timers import Timers
    from boxd.model.box import Box
    from boxd.store.interface import ControlStore

STOPPED = f"stopped with the service; {FROM_DISK}"
_PARALLEL = 4
"""Boxes that are stopped or adopted at the same time."""

_log = logging.getLogger(__name__)


class Adoption:
    """See the module. Holds no state of its own."""

    def __init__(
        self,
        *,
        store: ControlStore,
        assembly: Assembly,
        changes: Changes,
        locks: Locks,
        timers: Timers,
    ) -> None:
        self._store = store
        self._assembly = assembly
        self._changes = changes
        self._locks = locks
        self._timers = timers

    async def adopt_all(self) -> None:
        """Compares every row with the host; destroys boxes of the backend that have no row.

        A box that cannot be adopted is logged, and its next use tries again.
        """
        alive = await self._assembly.alive()
        boxes = await self._store.all_boxes()
        known = {box.id for box in boxes}
        limit = asyncio.Semaphore(_PARALLEL)

        async def adopt(box: Box) -> None:
            async with limit, self._locks.box(box):
                try:
                    await self._adopt(box, alive.get(box.id))
                except (BoxdError, OSError) as error:
                    # One box must not keep the others away; its next use tries again.
                    _log.error("box not adopted: %s", error, extra={"box": box.id})

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
            for box_id in alive.keys() - known:
                group.create_task(discard(box_id))

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
        """Stops every running box; Unavailable at the end when that failed for some."""
        limit = asyncio.Semaphore(_PARALLEL)
        failures: list[str] = []

        async def stop(box: Box) -> None:
            async with limit, self._locks.box(box):
                try:
                    if box.ephemeral:
                        await self._changes.destroy(box)
                    else:
                        await self._changes.stop(box, STOPPED)
                except (BoxdError, OSError) as error:
                    failures.append(f"box {box.ref}: {error}")

        async def stop_unrecorded(box_id: str) -> None:
            async with limit:
                await self._assembly.backend.stop(box_id)

        try:
            boxes = await self._store.all_boxes()
        except Unavailable:
            alive = await self._assembly.alive()
            await asyncio.gather(*(stop_unrecorded(one) for one, runs in alive.items() if runs))
            raise
        await asyncio.gather(*(stop(box) for box in boxes if box.state is BoxState.RUNNING))
        if failures:
            raise Unavailable("not stopped cleanly: " + "; ".join(failures))

    async def _adopt(self, box: Box, running: bool | None) -> None:
        """Compares a row with the backend: `running` None means that it holds no such box."""
        if self._timers.removal_due(box) or box.ephemeral or box.state is BoxState.CREATING:
            await self._changes.destroy(box)
            return
        self._timers.watch(box)
        if box.state in (BoxState.SUSPENDED, BoxState.FAILED):
            if running:
                await self._assembly.stop(box)
            return
        box = await self._changes.settle(box, running=bool(running))
        if box.state is BoxState.RUNNING:
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
