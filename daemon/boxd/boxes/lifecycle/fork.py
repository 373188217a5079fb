"""Forks: new boxes with the disk and memory of another box, and their own identity.

The daemon freezes the base only while it copies its state, and does not wake a suspended base. The
copy has no row. The daemon drops the copy when the new box runs, or at the latest when the daemon
starts again. So no caller waits for a flush to the disk. The new box has its own id, host key,
hostname and address. Its agent loads them before it sends hello.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from boxd.boxes.lifecycle.suspend import InUse
from boxd.errors import BadRequest, Conflict
from boxd.model.snapshot import snapshot_of
from boxd.observation import Work, observed
from boxd.secret import random_hex

if TYPE_CHECKING:
    from boxd.boxes.lifecycle.changes import Changes
    from boxd.boxes.lifecycle.collaborators import Collaborators
    from boxd.boxes.lifecycle.pins import Pins
    from boxd.boxes.lifecycle.snapshots import Snapshots
    from boxd.boxes.state.requests import BoxRequest
    from boxd.model.box import Box
    from boxd.model.progress import Progress
    from boxd.model.snapshot import Snapshot
    from boxd.names.spec import BoxSpec

_log = logging.getLogger(__name__)


class Forks:
    """Creates boxes from other boxes and from snapshots. Never locks base and new box at once."""

    def __init__(
        self, collaborators: Collaborators, *, changes: Changes, snapshots: Snapshots, pins: Pins
    ) -> None:
        self.observer = collaborators.observer
        self._locks = collaborators.locks
        self._clock = collaborators.clock
        self._changes = changes
        self._pins = pins
        self._snapshots = snapshots

    @observed(Work.FORK)
    async def fork(self, base: Box, request: BoxRequest, progress: Progress) -> Box:
        """Create a running box from the current state of a box; a suspended base stays suspended.

        Raises Conflict naming the users of the base, or if the name is in use; NotFound,
        QuotaExceeded or Unsupported.
        """
        self._snapshots.check_able()
        _check(request.spec)
        await self._check_free(request)
        async with self._locks.standstills, self._locks.box(base):
            base = await self._changes.steady(base)
            try:
                self._snapshots.check(base)
            except InUse as error:
                raise InUse(f"{error}; or fork a snapshot of it") from None
            state = snapshot_of(base, random_hex(16), "fork", self._clock.now())
            try:
                await self._snapshots.take(base, state.id, lasting=False)
            except BaseException:
                await self._snapshots.drop(state.id)
                raise
        try:
            return await self._make(state, request, progress)
        finally:
            await self._snapshots.drop(state.id)

    @observed(Work.FORK)
    async def fork_snapshot(self, base: Snapshot, request: BoxRequest, progress: Progress) -> Box:
        """Create a running box from a snapshot; see `fork`."""
        self._snapshots.check_able()
        _check(request.spec)
        return await self._make(base, request, progress)

    async def _make(self, base: Snapshot, request: BoxRequest, progress: Progress) -> Box:
        async with self._locks.name(request.owner, request.workspace, request.spec.name):
            old = await self._check_free(request)
            box = await self._changes.create_from(base, request, progress, old=old)
        _log.info("box forked", extra={"box": box.id})
        return box

    async def _check_free(self, request: BoxRequest) -> Box | None:
        """Return the box that the new one replaces, or None.

        Raises Conflict if the name is in use and the spec does not ask for a fresh box. Raises
        Pinned if the box to replace is pinned.
        """
        spec = request.spec
        box = await self._changes.find(request.owner, request.workspace, spec.name)
        if box is not None and spec.fresh:
            self._pins.check_removable(box)
        if box is not None and not spec.fresh:
            raise Conflict(f"box {box.ref} already exists; choose another name, or {spec.name}+")
        return box


def _check(spec: BoxSpec) -> None:
    if spec.image is not None:
        raise BadRequest(
            "a fork has the image and size of its base: give NAME, with ^ttl and +duration at most"
        )
