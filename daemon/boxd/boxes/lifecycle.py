"""Life of boxes: the only writer of box state.

A change is a row in the control database first; then the host follows. What a crash leaves in
between is put right by `adopt` at the next start.

Critical sections: everything that decides on a box or changes it runs under the lock of its
(owner, workspace, name), holds being counted there too; quota check and the new row run under the
owner's lock. A start or removal runs in a task of its own, so that a caller who goes away never
leaves a box half made.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from boxd.boxes.attachments import Attachments, Hold
from boxd.boxes.records import Defaults, clamped_note, ignored_note, new_box
from boxd.boxes.timers import Timers
from boxd.errors import BadRequest, BoxdError, InvalidKey, NotFound, Unavailable
from boxd.model.box import Box, BoxState
from boxd.names.words import shown
from boxd.secret import random_hex

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from datetime import timedelta

    from boxd.boxes.assembly import Assembly
    from boxd.boxes.interface import Catalog
    from boxd.boxes.quota import Tier
    from boxd.clock import Clock
    from boxd.names.spec import BoxSpec
    from boxd.store.interface import ControlStore
    from boxd.tunnel.channel import Tunnel

FROM_DISK = "starts again from its disk"
STOPPED = f"stopped with the service; {FROM_DISK}"
DIED = f"its processes ended; {FROM_DISK}"
EXPIRED = "reached its deadline"
REMOVED = "was removed"
_PARALLEL = 4
"""Boxes that are stopped or adopted at the same time."""

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Attachment:
    """A running box, held awake, and the connection to its agent."""

    box: Box
    tunnel: Tunnel
    hold: Hold

    @property
    def lost(self) -> str:
        """Why the connection ended before what ran in it."""
        return self.hold.lost or "the connection to the box was lost"


class Lifecycle:
    """See the module. `automount`: new boxes get /wrk without asking for it."""

    def __init__(
        self,
        *,
        store: ControlStore,
        assembly: Assembly,
        catalog: Catalog,
        tier: Tier,
        clock: Clock,
        default_image: str,
        automount: bool,
    ) -> None:
        self.attachments = Attachments()
        self._store = store
        self._assembly = assembly
        self._catalog = catalog
        self._tier = tier
        self._clock = clock
        self._defaults = Defaults(
            image=default_image,
            backend=assembly.backend.name,
            drive=automount and assembly.drives is not None,
            deadline_max=tier.deadline_max,
        )
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timers = Timers(clock, expire=self._expire, clear=self._finish)

    @property
    def why_no_suspend(self) -> str:
        """What keeps the backend from suspending boxes."""
        return self._assembly.backend.capabilities().why_no_suspend

    async def start(self) -> None:
        """Adopts what an earlier daemon left, then begins to enforce deadlines."""
        await self._adopt_all()
        await self._release_unused()
        self._timers.start()

    async def close(self, *, stop_boxes: bool) -> None:
        """Lets what is under way finish (each step is bounded); stops all boxes if asked to."""
        await self._timers.close()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if stop_boxes:
            await self._stop_all()
        await self._assembly.tunnels.close_all()

    async def up(
        self,
        owner: str,
        workspace: str | None,
        spec: BoxSpec,
        *,
        notes: Callable[[str], None] | None = None,
        default_ttl: timedelta | None = None,
        hold: Hold | None = None,
    ) -> Box:
        """The running box of a spec: made when it is not there, started when it does not run.

        `default_ttl` is the deadline of a new box whose spec has none. `hold`, if given, is
        counted for the box under its lock. Raises what `Assembly.start` and the quota raise.
        """
        name = f"tmp-{random_hex(5)}" if spec.anonymous else spec.name
        wish = replace(spec, name=name, ttl=spec.ttl or default_ttl)
        said = notes or _log.debug

        async def change() -> Box:
            async with self._lock(owner, _ref(workspace, name)):
                box = await self._find(owner, workspace, name)
                if box is not None and (spec.fresh or box.state is BoxState.CREATING):
                    await self._destroy(box)
                    if spec.fresh:
                        said(f"removed the old box {box.ref} ({box.id[:12]})")
                    box = None
                if box is None:
                    box = await self._create(owner, workspace, wish, ephemeral=spec.anonymous)
                    if (note := clamped_note(box, spec)) is not None:
                        said(note)
                else:
                    box = await self._renew(box, spec, said)
                    box = await self._wake(box)
                return self._counted(box, hold)

        return await self._shielded(change(), hold)

    async def wake(self, box: Box, *, hold: Hold | None = None) -> Box:
        """Has an existing box run; NotFound when it was removed meanwhile."""

        async def change() -> Box:
            async with self._lock(box.owner, box.ref):
                return self._counted(await self._wake(await self._present(box)), hold)

        return await self._shielded(change(), hold)

    async def remove(self, box: Box) -> None:
        """Destroys the box whatever holds it; no error when it is gone already."""
        await asyncio.shield(self._spawn(self._remove(box, REMOVED)))

    async def _expire(self, box: Box) -> None:
        await self._remove(box, EXPIRED)

    async def _remove(self, box: Box, why: str) -> None:
        async with self._lock(box.owner, box.ref):
            if await self._store.box(box.id) is not None:
                await self._destroy(box, why)

    @asynccontextmanager
    async def attach(
        self,
        owner: str,
        workspace: str | None,
        spec: BoxSpec,
        *,
        why: str,
        key_id: str | None,
        notes: Callable[[str], None] | None = None,
        default_ttl: timedelta | None = None,
    ) -> AsyncIterator[Attachment]:
        """Holds the box of a spec while the context lasts; see `up`."""
        hold = Hold("", why, key_id)
        box = await self.up(owner, workspace, spec, notes=notes, default_ttl=default_ttl, hold=hold)
        async with self._held(box, hold) as attachment:
            yield attachment

    @asynccontextmanager
    async def attach_existing(
        self, box: Box, *, why: str, key_id: str | None
    ) -> AsyncIterator[Attachment]:
        """Holds an existing box while the context lasts; see `wake`."""
        hold = Hold("", why, key_id)
        box = await self.wake(box, hold=hold)
        async with self._held(box, hold) as attachment:
            yield attachment

    async def workspace_request(self, box_id: str, verb: str) -> dict[str, object]:
        """`mount`, `umount` or `info` of /wrk, asked for by the agent of a box."""
        box = await self._store.box(box_id)
        if box is None:
            raise NotFound("no such box")
        drives = self._assembly.drives
        if drives is None:
            raise Unavailable("the workspace drive is not enabled on this host")
        if verb == "info":
            return await drives.info(box)
        if verb not in ("mount", "umount"):
            raise BadRequest(f"unknown request {shown(verb)}: use mount, umount or info")
        async with self._lock(box.owner, box.ref):
            box = await self._present(box)
            if verb == "mount":
                await drives.prepare(box.owner, box.workspace)
                await drives.attach(box)
                try:
                    await self._store.change_drive(box.id, True)
                except BoxdError:
                    await drives.detach(box)
                    raise
            else:
                await drives.detach(box)
                await self._store.change_drive(box.id, False)
            return await drives.info(replace(box, drive=verb == "mount"))

    def mount_restarted(self, owner: str, workspace: str | None) -> None:
        """The mount of a volume was replaced on this host.

        Returns at once: a box's lock may be held by one who waits for that very mount.
        """
        self._spawn(self._reattach_logged(owner, workspace))

    async def _reattach_logged(self, owner: str, workspace: str | None) -> None:
        try:
            await self.reattach(owner, workspace)
        except BoxdError as error:
            _log.warning("restarted mount not attached everywhere: %s", error)

    async def reattach(self, owner: str, workspace: str | None) -> None:
        """Puts a new mount of a volume into all running boxes of it; a crashed one was there."""
        drives = self._assembly.drives
        if drives is None:
            return
        for box in await self._store.boxes(owner):
            if box.workspace != workspace:
                continue
            async with self._lock(box.owner, box.ref):
                present = await self._store.box(box.id)
                if present and present.drive and present.state is BoxState.RUNNING:
                    await drives.attach(present)

    # --- under the box's lock -------------------------------------------------------------

    async def _create(
        self, owner: str, workspace: str | None, spec: BoxSpec, *, ephemeral: bool
    ) -> Box:
        private_key, host_key = self._assembly.new_identity()
        box = new_box(
            owner,
            workspace,
            spec,
            catalog=self._catalog,
            defaults=self._defaults,
            host_key=host_key,
            now=self._clock.now(),
            ephemeral=ephemeral,
        )
        async with self._lock(owner, ""):
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
        return box

    async def _wake(self, box: Box) -> Box:
        if box.state is BoxState.RUNNING:
            if await self._assembly.tunnel(box) is not None:
                return box
            box = await self._store.change_state(box.id, BoxState.RUNNING, BoxState.FAILED, DIED)
        elif box.state in (BoxState.SUSPENDING, BoxState.RESUMING):
            box = await self._settle(box, running=False)
        return await self._start(box)

    async def _start(self, box: Box) -> Box:
        """From `suspended` or `failed`: the box's processes start anew on its disk."""
        before = box.state
        async with self._lock(box.owner, ""):
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
        return await self._store.change_state(box.id, BoxState.RESUMING, BoxState.RUNNING)

    async def _give_up(self, box: Box, detail: str) -> None:
        """After a failed start. Also without the database; the next use settles the row then."""
        try:
            await self._store.change_state(box.id, BoxState.RESUMING, BoxState.SUSPENDED, detail)
        except BoxdError as error:
            _log.warning("failed start not recorded: %s", error, extra={"box": box.id})
        await self._assembly.stop(box)

    async def _stop(self, box: Box, detail: str) -> None:
        self.attachments.tell_lost(box.id, f"box {box.ref} stopped")
        try:
            await self._store.change_state(box.id, BoxState.RUNNING, BoxState.SUSPENDING)
        finally:
            # Also without the database: the next start sees that the box does not run.
            await self._assembly.stop(box)
        await self._store.change_state(box.id, BoxState.SUSPENDING, BoxState.SUSPENDED, detail)

    async def _destroy(self, box: Box, why: str = REMOVED) -> None:
        """Row first: without it the next start destroys what is left here.

        What fails afterwards is tried again by the timer.
        """
        await self._store.remove_box(box.id)
        self._timers.unwatch(box)
        self.attachments.tell_lost(box.id, f"box {box.ref} {why}")
        try:
            await self._assembly.destroy(box)
        except BoxdError as error:
            self._timers.doom(box, error)
        _log.info("box removed", extra={"box": box.id})

    async def _undo(self, box: Box) -> None:
        """After a failed creation: nothing is left, or the timer removes what is."""
        try:
            await self._destroy(box)
        except BoxdError as error:
            self._timers.doom(box, error)
            try:
                await self._assembly.destroy(box)
            except BoxdError as left:
                _log.warning("%s; trying again", left, extra={"box": box.id})

    async def _finish(self, box: Box) -> None:
        """What `_destroy` or `_undo` could not do. Its row, if any, is in nobody else's hands."""
        if await self._store.box(box.id) is not None:
            async with self._lock(box.owner, box.ref):
                await self._store.remove_box(box.id)
        await self._assembly.destroy(box)

    async def _renew(self, box: Box, spec: BoxSpec, said: Callable[[str], None]) -> Box:
        """Applies what a spec may change in an existing box; notes what it may not."""
        note = ignored_note(box, spec)
        if note is not None:
            said(note)
        if spec.grace is not None and spec.grace != box.grace:
            await self._store.change_grace(box.id, spec.grace)
            box = replace(box, grace=spec.grace)
        return box

    # --- holds ----------------------------------------------------------------------------

    def _counted(self, box: Box, hold: Hold | None) -> Box:
        if hold is not None:
            hold.box_id = box.id
            self.attachments.add(hold)
        return box

    @asynccontextmanager
    async def _held(self, box: Box, hold: Hold) -> AsyncIterator[Attachment]:
        task = asyncio.current_task()
        revoked = False

        def end() -> None:
            nonlocal revoked
            if task is not None and not revoked:
                revoked = True
                task.cancel()

        try:
            tunnel = await self._assembly.tunnels.get(box.id)
            hold.end = end
            yield Attachment(box, tunnel, hold)
        except asyncio.CancelledError:
            if revoked and task is not None and task.uncancel() == 0:
                raise InvalidKey from None
            raise
        finally:
            hold.end = None
            self._released(box, hold)

    def _released(self, box: Box, hold: Hold) -> None:
        if self.attachments.remove(hold) == 0 and box.ephemeral:
            self._spawn(self._remove_unheld(box))

    async def _remove_unheld(self, box: Box) -> None:
        async with self._lock(box.owner, box.ref):
            unheld = self.attachments.count(box.id) == 0
            if unheld and await self._store.box(box.id) is not None:
                await self._destroy(box)

    # --- start and stop of the service -----------------------------------------------------

    async def _adopt_all(self) -> None:
        alive = await self._assembly.alive()
        boxes = await self._store.all_boxes()
        known = {box.id for box in boxes}
        limit = asyncio.Semaphore(_PARALLEL)

        async def adopt(box: Box) -> None:
            async with limit, self._lock(box.owner, box.ref):
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

    async def _release_unused(self) -> None:
        """Mounts of boxes that died, or were removed, with the last daemon."""
        drives = self._assembly.drives
        if drives is None:
            return
        boxes = [box for box in await self._store.all_boxes() if box.drive]
        running = [box for box in boxes if box.state is BoxState.RUNNING]
        try:
            await drives.release_unused({(box.owner, box.workspace) for box in running})
        except BoxdError as error:
            _log.warning("idle mounts not ended: %s", error)

    async def _adopt(self, box: Box, running: bool | None) -> None:
        """Compares a row with the backend: `running` None means that it holds no such box."""
        expired = box.deadline is not None and box.deadline <= self._clock.now()
        if expired or box.ephemeral or box.state is BoxState.CREATING:
            await self._destroy(box)
            return
        self._timers.watch(box)
        if box.state in (BoxState.SUSPENDED, BoxState.FAILED):
            if running:
                await self._assembly.stop(box)
            return
        box = await self._settle(box, running=bool(running))
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

    async def _settle(self, box: Box, *, running: bool) -> Box:
        """Brings a row that a crash left in the middle to `running` or `suspended`."""
        if running and box.state in (BoxState.SUSPENDING, BoxState.RESUMING):
            return await self._store.change_state(box.id, box.state, BoxState.RUNNING)
        if not running and box.state is BoxState.RUNNING:
            box = await self._store.change_state(box.id, box.state, BoxState.SUSPENDING)
        if not running:
            return await self._store.change_state(box.id, box.state, BoxState.SUSPENDED, DIED)
        return box

    async def _stop_all(self) -> None:
        """Stops every running box; Unavailable at the end when that failed for some."""
        limit = asyncio.Semaphore(_PARALLEL)
        failures: list[str] = []

        async def stop(box: Box) -> None:
            async with limit, self._lock(box.owner, box.ref):
                try:
                    if box.ephemeral:
                        await self._destroy(box)
                    else:
                        await self._stop(box, STOPPED)
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

    # --- helpers --------------------------------------------------------------------------

    def _lock(self, owner: str, ref: str) -> asyncio.Lock:
        """One lock per box name; `ref` empty: the lock of the owner's sums."""
        return self._locks.setdefault((owner, ref), asyncio.Lock())

    async def _find(self, owner: str, workspace: str | None, name: str) -> Box | None:
        for box in await self._store.boxes(owner):
            if (box.workspace, box.name) == (workspace, name):
                return box
        return None

    async def _present(self, box: Box) -> Box:
        present = await self._store.box(box.id)
        if present is None:
            raise NotFound(f"box {box.ref} was removed")
        return present

    def _spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _shielded(self, work: Coroutine[Any, Any, Box], hold: Hold | None) -> Box:
        """Runs `work` to its end also when the caller goes away; then nothing is held."""
        task = self._spawn(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if hold is not None:
                task.add_done_callback(lambda done: self._abandoned(done, hold))
            raise

    def _abandoned(self, done: asyncio.Task[Box], hold: Hold) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        self._released(done.result(), hold)


def _ref(workspace: str | None, name: str) -> str:
    return name if workspace is None else f"{workspace}/{name}"


def _plain(error: BaseException) -> BaseException:
    """The first error of a group stands for it, as the steps of a start run side by side."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
