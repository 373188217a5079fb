"""Changes of one box: made, woken, started, stopped, destroyed, and undone when that fails.

A change is a row in the control database first; then the host follows. All of it is called under
the box's lock; quota check and the new row run under the owner's lock as well.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from boxd.boxes.records import new_box
from boxd.boxes.wish import renewed, wished
from boxd.errors import BoxdError, NotFound
from boxd.model.box import BoxState

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from boxd.boxes.assembly import Assembly
    from boxd.boxes.attachments import Attachments
    from boxd.boxes.interface import Catalog
    from boxd.boxes.locks import Locks
    from boxd.boxes.quota import Tier
    from boxd.boxes.timers import Timers
    from boxd.boxes.wish import Defaults
    from boxd.clock import Clock
    from boxd.model.box import Box
    from boxd.names.spec import BoxSpec
    from boxd.store.interface import ControlStore

FROM_DISK = "starts again from its disk"
DIED = f"its processes ended; {FROM_DISK}"
REMOVED = "was removed"
REMADE = "its disk was lost; started anew from its image"

_log = logging.getLogger(__name__)


class Changes:
    """See the module. Holds no state of its own; tells attachments and timers what changed."""

    def __init__(
        self,
        *,
        store: ControlStore,
        assembly: Assembly,
        catalog: Catalog,
        tier: Tier,
        clock: Clock,
        defaults: Defaults,
        locks: Locks,
        attachments: Attachments,
        timers: Timers,
    ) -> None:
        self._store = store
        self._assembly = assembly
        self._catalog = catalog
        self._tier = tier
        self._clock = clock
        self._defaults = defaults
        self._locks = locks
        self._attachments = attachments
        self._timers = timers

    async def find(self, owner: str, workspace: str | None, name: str) -> Box | None:
        """The box of a name as it is stored now; None when there is none."""
        for box in await self._store.boxes(owner):
            if (box.workspace, box.name) == (workspace, name):
                return box
        return None

    async def present(self, box: Box) -> Box:
        """The box as it is stored now; NotFound when it was removed meanwhile."""
        present = await self._store.box(box.id)
        if present is None:
            raise NotFound(f"box {box.ref} was removed")
        return present

    async def create(
        self,
        owner: str,
        workspace: str | None,
        spec: BoxSpec,
        said: Callable[[str], None],
        *,
        default_ttl: timedelta | None,
        ephemeral: bool,
    ) -> Box:
        """A new running box of a spec; notes what was clamped. What fails leaves nothing.

        Raises what quota, catalog and `Assembly` raise.
        """
        private_key, host_key = self._assembly.new_identity()
        wish = wished(spec, self._defaults, self._catalog, default_ttl=default_ttl)
        self._catalog.rootfs(wish.image)
        now = self._clock.now()
        box = new_box(
            owner, workspace, spec.name, wish, host_key=host_key, now=now, ephemeral=ephemeral
        )
        async with self._locks.sums(owner):
            boxes = await self._store.boxes(owner)
            self._tier.check_box(boxes, cpus=box.cpus, mem_mb=box.mem_mb, new=True)
            await self._store.add_box(box)
        try:
            await self._assembly.build(box, private_key)
            await self._assembly.start(box)
            box = await self._store.change_state(box.id, BoxState.CREATING, BoxState.RUNNING)
        except BaseException as error:
            await self._undo(box)
            failure = _plain(error)
            if failure is error:
                raise
            raise failure from error
        self._timers.watch(box)
        _log.info("box created", extra={"box": box.id, "image": box.image})
        for one in wish.shortened:
            said(one.told(box.ref))
        return box

    async def renew(self, box: Box, spec: BoxSpec, said: Callable[[str], None]) -> Box:
        """Applies what a spec may change in an existing box; notes what it may not."""
        renewal = renewed(spec, box, self._defaults)
        for note in renewal.notes:
            said(note)
        if renewal.grace is not None:
            await self._store.change_box(box.id, grace=renewal.grace)
            box = replace(box, grace=renewal.grace)
        return box

    async def wake(self, box: Box) -> Box:
        """Has an existing box run, whatever state its row tells."""
        if box.state is BoxState.RUNNING:
            if await self._assembly.tunnel(box) is not None:
                return box
            box = await self._store.change_state(box.id, BoxState.RUNNING, BoxState.FAILED, DIED)
        elif box.state in (BoxState.SUSPENDING, BoxState.RESUMING):
            box = await self.settle(box, running=False)
        return await self._start(box)

    async def settle(self, box: Box, *, running: bool) -> Box:
        """Brings a row that a crash left in the middle to `running` or `suspended`."""
        if running and box.state in (BoxState.SUSPENDING, BoxState.RESUMING):
            return await self._store.change_state(box.id, box.state, BoxState.RUNNING)
        if not running and box.state is BoxState.RUNNING:
            box = await self._store.change_state(box.id, box.state, BoxState.SUSPENDING)
        if not running:
            return await self._store.change_state(box.id, box.state, BoxState.SUSPENDED, DIED)
        return box

    async def stop(self, box: Box, detail: str) -> None:
        """From `running` to `suspended`: ends the box's processes; its disk stays."""
        self._attachments.tell_lost(box.id, f"box {box.ref} stopped")
        try:
            await self._store.change_state(box.id, BoxState.RUNNING, BoxState.SUSPENDING)
        finally:
            # Also without the database: the next start sees that the box does not run.
            await self._assembly.stop(box)
        await self._store.change_state(box.id, BoxState.SUSPENDING, BoxState.SUSPENDED, detail)

    async def destroy(self, box: Box, why: str = REMOVED) -> None:
        """Row first: without it the next start destroys what is left here.

        What fails afterwards is tried again by the timer.
        """
        await self._store.remove_box(box.id)
        self._timers.unwatch(box)
        self._attachments.tell_lost(box.id, f"box {box.ref} {why}")
        try:
            await self._assembly.destroy(box)
        except BoxdError as error:
            self._timers.doom(box, error)
        _log.info("box removed", extra={"box": box.id})

    async def _start(self, box: Box) -> Box:
        """From `suspended` or `failed`: the box's processes start anew on its disk."""
        before, detail = box.state, ""
        if self._assembly.is_lost(box):
            box, detail = await self._remake(box), REMADE
        async with self._locks.sums(box.owner):
            others = [one for one in await self._store.boxes(box.owner) if one.id != box.id]
            self._tier.check_box(others, cpus=box.cpus, mem_mb=box.mem_mb, new=False)
            box = await self._store.change_state(box.id, before, BoxState.RESUMING)
        try:
            await self._assembly.start(box)
        except BaseException as error:
            failure = _plain(error)
            await self._give_up(box, f"did not start: {failure}")
            if failure is error:
                raise
            raise failure from error
        _log.info("box started", extra={"box": box.id})
        return await self._store.change_state(box.id, BoxState.RESUMING, BoxState.RUNNING, detail)

    async def _remake(self, box: Box) -> Box:
        """A box of which only the row is left gets a fresh disk and an identity of its own."""
        private_key, host_key = self._assembly.new_identity()
        await self._store.change_box(box.id, host_key=host_key)
        box = replace(box, host_key=host_key)
        try:
            await self._assembly.build(box, private_key)
        except BaseException:
            await self._assembly.destroy(box)
            raise
        _log.warning("the disk of the box was lost; it starts anew", extra={"box": box.id})
        return box

    async def _give_up(self, box: Box, detail: str) -> None:
        """After a failed start. Also without the database; the next use settles the row then."""
        try:
            await self._store.change_state(box.id, BoxState.RESUMING, BoxState.SUSPENDED, detail)
        except BoxdError as error:
            _log.warning("failed start not recorded: %s", error, extra={"box": box.id})
        await self._assembly.stop(box)

    async def _undo(self, box: Box) -> None:
        """After a failed creation: nothing is left, or the timer removes what is."""
        try:
            await self.destroy(box)
        except BoxdError as error:
            self._timers.doom(box, error)
            try:
                await self._assembly.destroy(box)
            except BoxdError as left:
                _log.warning("%s; trying again", left, extra={"box": box.id})


def _plain(error: BaseException) -> BaseException:
    """The first error of a group stands for it, as the steps of a start run side by side."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
