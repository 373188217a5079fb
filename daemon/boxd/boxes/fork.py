"""Boxes that are made of others while these live: the same disk and memory, another identity.

The base stands still for the moment in which its state is taken, and is not even woken if it
sleeps. What is taken has no row: it is dropped when the new box runs, at the latest at the next
start of the service; so nobody waits until the disk has it. The new box has an id, a host key, a
hostname and an address of its own; its agent takes them up before it says hello.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from boxd.boxes.suspend import InUse
from boxd.errors import BadRequest, Conflict
from boxd.model.snapshot import snapshot_of
from boxd.secret import random_hex

if TYPE_CHECKING:
    from collections.abc import Callable

    from boxd.boxes.changes import Changes
    from boxd.boxes.parts import Parts
    from boxd.boxes.snapshots import Snapshots
    from boxd.model.box import Box
    from boxd.model.snapshot import Snapshot
    from boxd.names.spec import BoxSpec

_log = logging.getLogger(__name__)


class Forks:
    """See the module. The locks of base and new box are never held together."""

    def __init__(self, parts: Parts, *, changes: Changes, snapshots: Snapshots) -> None:
        self._locks = parts.locks
        self._clock = parts.clock
        self._changes = changes
        self._snapshots = snapshots

    async def fork(
        self, base: Box, workspace: str | None, spec: BoxSpec, said: Callable[[str], None]
    ) -> Box:
        """A new running box of a spec, made of a box as it is now; it sleeps on if it sleeps.

        Conflict names who uses the base, or says that there is a box of the name. NotFound,
        QuotaExceeded, Unsupported.
        """
        self._snapshots.check_able()
        _check(spec)
        await self._check_free(base.owner, workspace, spec)
        async with self._locks.standstills, self._locks.box(base):
            base = await self._changes.steady(base)
            try:
                self._snapshots.check(base)
            except InUse as error:
                raise InUse(f"{error}; or fork a snapshot of it") from None
            taken = snapshot_of(base, random_hex(16), "fork", self._clock.now())
            try:
                await self._snapshots.take(base, taken.id, lasting=False)
            except BaseException:
                await self._snapshots.drop(taken.id)
                raise
        try:
            return await self._make(taken, workspace, spec, said)
        finally:
            await self._snapshots.drop(taken.id)

    async def fork_snapshot(
        self, base: Snapshot, workspace: str | None, spec: BoxSpec, said: Callable[[str], None]
    ) -> Box:
        """A new running box of a spec, made of a snapshot; see `fork`."""
        self._snapshots.check_able()
        _check(spec)
        return await self._make(base, workspace, spec, said)

    async def _make(
        self, base: Snapshot, workspace: str | None, spec: BoxSpec, said: Callable[[str], None]
    ) -> Box:
        async with self._locks.name(base.owner, workspace, spec.name):
            old = await self._check_free(base.owner, workspace, spec)
            box = await self._changes.create_from(base, workspace, spec, said, old=old)
        _log.info("box forked", extra={"box": box.id})
        return box

    async def _check_free(self, owner: str, workspace: str | None, spec: BoxSpec) -> Box | None:
        """The box whose place the new one takes; Conflict if it may not."""
        box = await self._changes.find(owner, workspace, spec.name)
        if box is not None and not spec.fresh:
            raise Conflict(f"box {box.ref} exists; choose another name, or {spec.name}+")
        return box


def _check(spec: BoxSpec) -> None:
    if spec.image is not None:
        raise BadRequest(
            "a fork has the image and size of its base: give NAME, with ^ttl and +duration at most"
        )
