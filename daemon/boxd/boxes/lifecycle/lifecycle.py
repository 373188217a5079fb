"""The verbs of the box lifecycle: the only way to change the state of a box.

The verbs decide under the box's lock. `changes` then makes the change: first the row in the control
database, then the host. After a crash in between, `adoption` repairs the box at the next start.

Critical sections: decisions about a box, changes of the box and the counting of its holds run under
the lock of its (owner, workspace, name). A start or a removal runs in its own task. So a caller
that disconnects never leaves an incomplete box.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from box_guest import protocol
from boxd.boxes.lifecycle.adoption import Adoption
from boxd.boxes.lifecycle.agent_watch import AgentWatch
from boxd.boxes.lifecycle.changes import Changes
from boxd.boxes.lifecycle.collaborators import Collaborators
from boxd.boxes.lifecycle.copies import Copies
from boxd.boxes.lifecycle.dialling import dial
from boxd.boxes.lifecycle.drives import BoxDrives
from boxd.boxes.lifecycle.due_actions import DueActions
from boxd.boxes.lifecycle.figures import Figures
from boxd.boxes.lifecycle.fork import Forks
from boxd.boxes.lifecycle.holds import Holds, check_way_in
from boxd.boxes.lifecycle.pending_removals import BeingRemoved
from boxd.boxes.lifecycle.pins import Pins
from boxd.boxes.lifecycle.prepared import PreparedBoxes
from boxd.boxes.lifecycle.snapshots import Snapshots
from boxd.boxes.lifecycle.suspend import Sleep
from boxd.boxes.lifecycle.templates import Templates
from boxd.boxes.limits.admission import Admission
from boxd.boxes.presence.attachments import Hold
from boxd.boxes.presence.removal_notices import RemovalNotices
from boxd.boxes.presence.usage import UsageSampler
from boxd.boxes.state.requests import BoxRequest
from boxd.boxes.state.settings import Defaults
from boxd.boxes.timing.policy import SHIPPED, Policy
from boxd.errors import BoxdError
from boxd.model.box import Box, BoxState
from boxd.model.progress import SILENT
from boxd.model.view import Use
from boxd.observation import UNOBSERVED, Work
from boxd.tasks import BackgroundTasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine
    from datetime import timedelta

    from boxd.boxes.lifecycle.assembly import Assembly
    from boxd.boxes.lifecycle.holds import Attachment, AttachRequest
    from boxd.boxes.limits.admission import Limits
    from boxd.boxes.presence.expiry import Expiry
    from boxd.boxes.state.interface import Catalog
    from boxd.clock import HostClock
    from boxd.model.progress import Progress
    from boxd.model.snapshot import Snapshot
    from boxd.names.spec import BoxSpec
    from boxd.observation import Observer
    from boxd.store.interface import ControlStore
    from boxd.tunnel.presence import Presence
    from boxd.tunnel.stream import ByteStream

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleOptions:
    """Settings of the service that decide how it treats boxes.

    `default_image`: the image of a new box whose spec and profile name none. `automount`: new boxes
    get /wrk. `policy`: idle timeout, idle reaping and grace period. `templates`: the daemon copies
    new boxes from a booted template where the backend can. `prepared`: the number of copies that it
    keeps ready for new boxes. `previews`: ports of boxes have host
    names of their own, so the daemon warns of box names that look like one. `global_names`: a name
    in the default workspace belongs to one owner at a time.
    """

    default_image: str
    automount: bool
    policy: Policy = SHIPPED
    templates: bool = False
    prepared: int = 0
    previews: bool = False
    global_names: bool = False


class Lifecycle:
    """Creates, starts, suspends, resumes, forks, removes and holds boxes."""

    def __init__(
        self,
        *,
        store: ControlStore,
        assembly: Assembly,
        catalog: Catalog,
        clock: HostClock,
        limits: Limits,
        options: LifecycleOptions,
        observer: Observer = UNOBSERVED,
    ) -> None:
        self.host, self.source_addresses = limits.host, limits.source_addresses
        self.usage = UsageSampler(assembly.backend, clock)
        self._tasks = BackgroundTasks()
        self._collaborators = shared = Collaborators.create(
            store, clock, assembly, options.policy, observer
        )
        self._limits, self._options = limits, options
        self._store, self._assembly, self._locks = store, assembly, shared.locks
        self._timers, self.activity = shared.timers, shared.activity
        self.attachments, self.feed = shared.attachments, shared.feed
        self.expiry_notifier, self.box_index = shared.expiry_notifier, shared.box_index
        self.removal_notices = RemovalNotices(clock)
        self._sleep = Sleep(shared)
        self.templates = Templates(shared, on=options.templates)
        self._prepared = PreparedBoxes(shared, self.templates, most=options.prepared)
        admission = Admission(store, shared.locks, limits, global_names=options.global_names)
        self.figures = Figures(shared, admission)
        self._changes = Changes(
            shared,
            sleep=self._sleep,
            catalog=catalog,
            admission=admission,
            copies=Copies(shared, self.templates, self._prepared),
            defaults_of=self._defaults_of,
            previews=options.previews,
        )
        self._due_actions = DueActions(shared, sleep=self._sleep, changes=self._changes)
        self.agents = AgentWatch(shared, self._changes)
        self._adoption = Adoption(shared, sleep=self._sleep, changes=self._changes)
        self._pins = Pins(shared, self._changes, self.usage)
        self._drives = BoxDrives(shared, self._changes)
        self._holds = Holds(shared, changes=self._changes, tasks=self._tasks)
        self.snapshots = Snapshots(
            shared, sleep=self._sleep, changes=self._changes, tier_of=limits.tier_of
        )
        self._forks = Forks(
            shared, changes=self._changes, snapshots=self.snapshots, pins=self._pins
        )

    def _defaults_of(self, owner: str) -> Defaults:
        """Return the settings of the owner's new boxes, for values that no spec or profile sets."""
        tier = self._limits.tier_of(owner)
        return Defaults(
            image=self._options.default_image,
            backend=self._assembly.backend.name,
            drive=self._options.automount and self._assembly.drives is not None,
            deadline_max=tier.deadline_max,
            policy=self._options.policy,
            disk_mb=tier.disk_mb,
            tier=tier.name,
        )

    def use(self, box: Box) -> Use:
        """Return how the box is used, and its next automatic action."""
        return Use(
            attached=self.attachments.count(box.id),
            why=self.activity.why(box),
            pinned_until=self.activity.pinned_until(box),
            next=self._timers.next_act(box),
            removal=self._timers.removal(box),
            usage=self.usage.last(box.id),
            no_suspend=self._sleep.why_never(box),
        )

    def check_suspends(self) -> None:
        """Raise Unsupported if the backend cannot suspend boxes."""
        self._sleep.check_able()

    async def start(self, *, stopping: bool = False) -> None:
        """Adopt the boxes of the last daemon, then start the timers, watches and samplers.

        `stopping`: the daemon starts only to stop all boxes; it removes, starts and measures none.
        """
        boxes = await self._store.all_boxes()
        await self._collaborators.elapsed_time.start(self._store, boxes)
        self.box_index.fill(boxes)
        await self._adoption.adopt_all(stopping=stopping)
        if stopping:
            return
        await self.snapshots.clean(await self.templates.start())
        await self._adoption.release_unused()
        self._timers.start(self._due_actions)
        self.agents.start()
        self.usage.start()
        self.expiry_notifier.start(await self._store.ends(self._collaborators.clock.now()))
        self._tasks.start(self._adoption.start_again(), name="start boxes again")

    async def close(self, *, stop_boxes: bool) -> None:
        """Wait for running changes, each of which is bounded in time; then close all tunnels.

        `stop_boxes`: suspend or stop every running box first.
        """
        self.expiry_notifier.close()
        await self.usage.close()
        await self.agents.close()
        await self._timers.close()
        await self._tasks.join()
        await self._prepared.close()
        await self.templates.close()
        try:
            if stop_boxes:
                await self._adoption.stop_all()
            await self._due_actions.upkeep()
        finally:
            await self._assembly.tunnels.close_all()

    async def up(
        self, request: BoxRequest, progress: Progress = SILENT, *, wait: bool = True
    ) -> Box:
        """Return the running box of a request: create it if it is missing, else start it.

        Without `wait` the method returns as soon as the row says that the box is being created or
        woken. It raises an earlier failure and logs a later one. Raises the errors of
        `Assembly.start` and of the quota.
        """
        request = request.resolved()
        if wait:
            return await self._shielded(self._ensure_running(request, progress), None)
        started: asyncio.Future[Box] = asyncio.get_running_loop().create_future()
        reporting = progress.also_on_start(started.set_result)
        return await self._until_started(self._ensure_running(request, reporting), started)

    async def _ensure_running(
        self,
        request: BoxRequest,
        progress: Progress,
        hold: Hold | None = None,
        relay_key: str | None = None,
    ) -> Box:
        """Create or start the box of a request, and count `hold` for it, under its lock."""
        owner, workspace, spec = request.owner, request.workspace, request.spec
        async with self._locks.name(owner, workspace, spec.name):
            box = await self._changes.find(owner, workspace, spec.name)
            if box is not None:
                box = await self._usable(box, spec)
            if box is None or spec.fresh:
                box = await self._changes.create(
                    request, progress, relay_key=relay_key or "", old=box
                )
            else:
                check_way_in(box, hold, relay_key)
                box = await self._changes.renew(box, request, progress)
                box = await self._changes.wake(box, progress)
            if hold is not None:
                self._holds.count(hold, box)
            return box

    async def _usable(self, box: Box, spec: BoxSpec) -> Box | None:
        """Return the existing box that a spec uses or replaces; remove an incomplete one.

        Raises BeingRemoved, or Pinned if the spec replaces a pinned box.
        """
        if spec.fresh:
            self._pins.check_removable(box)
        elif self._collaborators.pending_removals.has(box):
            raise BeingRemoved(box)
        elif box.state is BoxState.CREATING:
            await self._changes.destroy(box)
            return None
        return box

    def check_image(self, name: str) -> None:
        """Raise UnknownImage if the image does not exist, Unavailable if it is not built yet."""
        self._assembly.root(name)

    async def wake(self, box: Box) -> Box:
        """Start an existing box and return it. Raises NotFound if it has been removed."""
        return await self._shielded(self._wake(box, SILENT), None)

    async def _wake(
        self, box: Box, progress: Progress, hold: Hold | None = None, relay_key: str | None = None
    ) -> Box:
        async with self._locks.box(box):
            box = await self._changes.present(box)
            check_way_in(box, hold, relay_key)
            box = await self._changes.wake(box, progress)
            if hold is not None:
                self._holds.count(hold, box)
            return box

    async def suspend(self, box: Box) -> Box:
        """Suspend a box with its memory; a suspended box stays as it is.

        Raises Conflict with the users if the box is in use, or with the reason if it cannot be
        checkpointed. The box then keeps running. Raises Unsupported if the backend cannot suspend
        boxes, and NotFound if the box was removed meanwhile.
        """

        async def change() -> Box:
            async with self._locks.standstills, self._locks.box(box):
                return await self._changes.suspend(await self._changes.present(box))

        return await self._shielded(change(), None)

    async def snapshot(self, box: Box, name: str | None, *, memory: bool = True) -> Snapshot:
        """Take a snapshot, as `Snapshots.create`, in a task that outlives the caller."""
        return await asyncio.shield(self._spawn(self.snapshots.create(box, name, memory=memory)))

    async def restore(self, box: Box, name: str) -> Box:
        """Restore a snapshot, as `Snapshots.restore`, in a task that outlives the caller."""
        return await asyncio.shield(self._spawn(self.snapshots.restore(box, name)))

    async def fork(
        self,
        base: Box | Snapshot,
        workspace: str | None,
        spec: BoxSpec,
        progress: Progress = SILENT,
    ) -> Box:
        """Create a running box from the state of another box or of a snapshot, as `Forks`."""
        request = BoxRequest(base.owner, workspace, spec)
        if isinstance(base, Box):
            work = self._forks.fork(base, request, progress)
        else:
            work = self._forks.fork_snapshot(base, request, progress)
        return await asyncio.shield(self._spawn(work))

    async def remove(self, box: Box, *, force: bool = True) -> None:
        """Remove a box even while it is held; no error if it has already been removed.

        Without `force` raises Pinned if the box has a pin.
        """
        await asyncio.shield(self._spawn(self._remove(box, force=force)))

    async def _remove(self, box: Box, *, force: bool) -> None:
        if not force:
            self._pins.check_removable(self._timers.known(box.id) or box)
        with self._collaborators.pending_removals.announce(box):
            async with self._locks.box(box):
                present = await self._store.box(box.id)
                if present is not None and not force:
                    # The box may have been pinned since the check above.
                    self._pins.check_removable(present)
                if present is not None:
                    await self._changes.destroy(present)

    async def pin(self, box: Box, span: timedelta, why: str) -> Box:
        """Keep a box awake for `span`, as `Pins.pin`."""
        return await self._pins.pin(box, span, why)

    async def unpin(self, box: Box) -> Box:
        """Remove the pin of a box, as `Pins.unpin`."""
        return await self._pins.unpin(box)

    async def keep(self, box: Box, *, durable: bool) -> Box:
        """Make a box durable, or not, as `Pins.keep`."""
        return await self._pins.keep(box, durable=durable)

    @asynccontextmanager
    async def attach(
        self, request: AttachRequest, progress: Progress = SILENT
    ) -> AsyncIterator[Attachment]:
        """Hold a running box while the context lasts; create or wake it first if necessary.

        Raises Confidential if only the box's own SSH server gives access and the request has no
        relay key. Raises Conflict if the request has one and the box is not confidential. Raises
        InvalidKey or Forbidden inside the context when the hold is revoked.
        """
        hold = Hold(request.owner, "", request.why, request.key_id)
        async with self._holds.revocable(hold, request.expiry):
            target = request.target
            if isinstance(target, Box):
                work = self._wake(target, progress, hold, request.relay_key)
            else:
                work = self._ensure_running(target.resolved(), progress, hold, request.relay_key)
            with self._collaborators.observer.work(Work.ATTACH):
                box = await self._shielded(work, hold)
            async with self._holds.attachment(box, hold) as attachment:
                yield attachment

    @asynccontextmanager
    async def visit(
        self, owner: str, *, why: str, key_id: str | None, expiry: Expiry | None = None
    ) -> AsyncIterator[None]:
        """Register a connection that holds no box, so that revoking its credential ends it.

        Raises InvalidKey or Forbidden inside the context when the credential is revoked.
        """
        async with self._holds.revocable(Hold(owner, "", why, key_id), expiry):
            yield

    async def report_oom(self, attachment: Attachment, progress: Progress) -> None:
        """Report processes that the kernel killed for lack of memory since the last report.

        Does nothing if the caller takes no notes; then the next login gets the report.
        """
        if progress.on_note is None or attachment.oom is None:
            return
        news = await self._collaborators.oom.news(attachment.oom)
        if news is not None:
            progress.note(news)

    async def dial(self, attachment: Attachment, port: int) -> ByteStream:
        """Connect to a TCP port of an attached box, as `dialling.dial`."""
        return await dial(self._assembly.backend, attachment.tunnel, port)

    # --- reports of agents and mounts ------------------------------------------------------

    async def request(self, box_id: str, verb: str, params: dict[str, Any]) -> dict[str, object]:
        """Answer a request of the agent of a box; see `BoxDrives.request` and `Pins.request`."""
        if verb == protocol.WORKSPACE:
            return await self._drives.request(box_id, params["verb"])
        if verb == protocol.LIFE:
            await self.usage.refresh(box_id)
        return await self._pins.request(box_id, verb, params)

    def report(self, box_id: str, presence: Presence) -> None:
        """Record what keeps a box awake without a client, as its agent reports it."""
        self.activity.report(box_id, presence)
        box = self._timers.known(box_id)
        if box is not None:
            self.feed.fleet(box.owner, box.workspace)

    def misbehaved(self, box_id: str, text: str) -> None:
        """Store in the row of a running box why the daemon disconnected its agent.

        Returns at once.
        """
        self._tasks.start(self._note_detail(box_id, text), name=f"message to box {box_id}")

    async def _note_detail(self, box_id: str, text: str) -> None:
        try:
            box = await self._store.box(box_id)
            if box is None:
                return
            async with self._locks.box(box):
                present = await self._store.box(box_id)
                if present is not None and present.state is BoxState.RUNNING:
                    await self._collaborators.repository.note(present, detail=text)
        except BoxdError as error:
            _log.warning("cannot store the detail of a box: %s", error, extra={"box": box_id})

    def mount_restarted(self, owner: str, workspace: str | None) -> None:
        """Attach the restarted mount of a volume to its running boxes again.

        Returns at once, because the holder of a box's lock may be waiting for this mount.
        """
        self._tasks.start(self._reattach_logged(owner, workspace), name="attach a restarted mount")

    async def reattach(self, owner: str, workspace: str | None) -> None:
        """Attach the drive of a workspace to its running boxes again, as `BoxDrives.reattach`."""
        await self._drives.reattach(owner, workspace)

    async def _reattach_logged(self, owner: str, workspace: str | None) -> None:
        try:
            await self.reattach(owner, workspace)
        except BoxdError as error:
            _log.warning("restarted mount not attached everywhere: %s", error)

    # --- tasks that outlive their caller ---------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        return self._tasks.start(work, name="request for a box", awaited=True)

    async def _shielded(self, work: Coroutine[Any, Any, Box], hold: Hold | None) -> Box:
        """Run `work` to its end even if the caller is cancelled; release the hold then."""
        task = self._spawn(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if hold is not None:
                task.add_done_callback(lambda done: self._release_abandoned(done, hold))
            raise

    def _release_abandoned(self, start: asyncio.Task[Box], hold: Hold) -> None:
        if not start.cancelled() and start.exception() is None:
            self._holds.release(hold, start.result())

    async def _until_started(
        self, work: Coroutine[Any, Any, Box], started: asyncio.Future[Box]
    ) -> Box:
        """Return the box that `work` starts, or its result if it ends first."""
        task = self._spawn(work)
        task.add_done_callback(lambda done: _log_failure(done, unseen=started.done()))
        await asyncio.wait({task, started}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else started.result()


def _log_failure(start: asyncio.Task[Box], *, unseen: bool) -> None:
    """Log the failure of a start that no caller waits for; the row of an old box has it too."""
    error = None if start.cancelled() else start.exception()
    if error is not None and unseen:
        _log.warning("box did not start: %s", error)
