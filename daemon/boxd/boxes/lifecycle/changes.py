"""Changes of one box: create, wake, start, stop and destroy, and undoing a change that fails.

A change writes the row in the control database first; then the host follows. Callers hold the box's
lock. The check of limits and the row that it admits run under the lock of all boxes, too.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from boxd.boxes.lifecycle.copies import Copies, plain
from boxd.boxes.lifecycle.pending_removals import BeingRemoved
from boxd.boxes.lifecycle.suspend import DIED, FROM_DISK, Waking
from boxd.boxes.state.records import new_box
from boxd.boxes.state.settings import box_settings, check_tier, profile_of, renewed
from boxd.cancellation import ended
from boxd.errors import AgentLost, BoxdError, NotFound, Unavailable, UnknownImage
from boxd.model.box import BoxState
from boxd.model.progress import SILENT
from boxd.names.preview import also_reads_as
from boxd.observation import Work, observed

if TYPE_CHECKING:
    from collections.abc import Callable

    from boxd.boxes.lifecycle.collaborators import Collaborators
    from boxd.boxes.lifecycle.suspend import Sleep
    from boxd.boxes.limits.admission import Admission
    from boxd.boxes.state.interface import Catalog
    from boxd.boxes.state.requests import BoxRequest
    from boxd.boxes.state.settings import Defaults, Shortened
    from boxd.model.box import Box
    from boxd.model.profile import Profile
    from boxd.model.progress import Progress
    from boxd.model.snapshot import Snapshot
    from boxd.names.spec import BoxSpec

REMOVED = "was removed"
REMADE = "its disk was lost; started from its image"
OTHER_DRIVE = "started from its disk: its base had the drive of another workspace"

_log = logging.getLogger(__name__)


def _note_preview_host(box: Box, progress: Progress) -> None:
    """Note that the name of a box looks like the preview host of another box."""
    if (other := also_reads_as(box.name)) is not None:
        progress.note(
            f"preview host {box.name} is port {other.port} of a box {other.reference}; ports of"
            f" this box are at {box.name}-PORT"
        )


@dataclass(frozen=True, slots=True)
class PlannedBox:
    """A new box that has passed all checks except the limits: its record without a host key.

    `detail` becomes the detail of its row once it runs. `snapshot_id` is the snapshot that its disk
    comes from, or empty.
    """

    box: Box
    shortened: tuple[Shortened, ...]
    detail: str = ""
    snapshot_id: str = ""


class Changes:
    """Changes boxes. Holds no state; informs attachments and timers of each change."""

    def __init__(
        self,
        collaborators: Collaborators,
        *,
        sleep: Sleep,
        catalog: Catalog,
        admission: Admission,
        copies: Copies,
        defaults_of: Callable[[str], Defaults],
        previews: bool = False,
    ) -> None:
        self.observer = collaborators.observer
        self._store = collaborators.store
        self._repository = collaborators.repository
        self._assembly = collaborators.assembly
        self._sleep = sleep
        self._catalog = catalog
        self._admission = admission
        self._templates, self._prepared = copies.templates, copies.prepared
        self._copies = copies
        self._clock = collaborators.clock
        self._defaults_of = defaults_of
        self._previews = previews
        self._locks = collaborators.locks
        self._attachments = collaborators.attachments
        self._activity = collaborators.activity
        self._timers = collaborators.timers
        self._pending_removals = collaborators.pending_removals
        self._oom = collaborators.oom

    async def find(self, owner: str, workspace: str | None, name: str) -> Box | None:
        """Return the stored box of a name, or None."""
        boxes = await self._store.find_boxes(owner, workspace, name)
        return boxes[0] if boxes else None

    async def present(self, box: Box) -> Box:
        """Return the stored box. Raises BeingRemoved if it has been removed."""
        present = await self._store.box(box.id)
        if present is None or self._pending_removals.has(box):
            raise BeingRemoved(box)
        return present

    async def create(
        self,
        request: BoxRequest,
        progress: Progress,
        *,
        relay_key: str = "",
        old: Box | None = None,
    ) -> Box:
        """Create a running box. A failed creation leaves nothing.

        `progress` gets a note for each shortened duration, and the start of the box once all checks
        have passed and its row exists. With a `relay_key` the box is confidential for life. It is
        never a copy of a template, because other boxes share the memory of the template. A box
        that may run containers is not a copy either, because its memory cannot be saved. `old` is
        the box of that name that the new one replaces. The daemon removes it only after all checks
        have passed, so a rejected request does not affect it. Raises the errors of quota, catalog
        and `Assembly`.
        """
        plan = await self._plan(request, relay_key)
        if relay_key or plan.snapshot_id or plan.box.containers:
            return await self._make(plan, progress, old=old)
        template = self._templates.find(plan.box)
        prepared_id = self._prepared.take(plan.box)
        box = await self._make(plan, progress, old=old, template=template, prepared_id=prepared_id)
        if template is None:
            self._templates.wanted(box)
        self._prepared.expect(box)
        return box

    async def create_from(
        self,
        base: Snapshot,
        request: BoxRequest,
        progress: Progress,
        *,
        old: Box | None = None,
    ) -> Box:
        """Create a running box with the disk and memory of a snapshot; see `create`."""
        if old is not None and base.id not in await self._assembly.backend.snapshots():
            raise NotFound(f"the saved state of box {base.ref} is no longer on this host")
        return await self._make(await self._plan_from(base, request), progress, old=old)

    async def _plan(self, request: BoxRequest, relay_key: str) -> PlannedBox:
        """Return what `create` creates, without changing anything.

        Raises the errors of profile, catalog and image.
        """
        owner, spec = request.owner, request.spec
        profile = await self._profile(owner, spec)
        if profile is None:
            profile = await self._workspace_profile(owner, request.workspace, spec)
        settings = box_settings(
            spec,
            self._defaults_of(owner),
            self._catalog,
            profile=profile,
            default_ttl=request.default_ttl,
            durable=request.durable,
            ephemeral=bool(request.ephemeral),
        )
        flavor, backend = settings.flavor, self._assembly.backend
        await backend.require_kind(flavor.runtime, containers=flavor.containers)
        self._check_image(settings.image, profile)
        await self._check_disk(profile)
        box = new_box(request, settings, now=self._clock.now(), relay_key=relay_key)
        return PlannedBox(box, settings.shortened, snapshot_id=(profile and profile.snapshot) or "")

    async def _plan_from(self, base: Snapshot, request: BoxRequest) -> PlannedBox:
        """Return what `create_from` creates, as `_plan` does for `create`."""
        defaults = self._defaults_of(base.owner)
        settings = box_settings(request.spec, defaults, self._catalog)
        check_tier(self._catalog, base.flavor, defaults.tier)
        await self._assembly.backend.require_kind(base.runtime, containers=base.containers)
        self._check_image(base.image, None)
        box = new_box(request, settings, now=self._clock.now())
        # The processes in the memory have files open on the drive of the base's workspace.
        elsewhere = base.memory and base.drive and request.workspace != base.workspace
        box = replace(
            box,
            image=base.image,
            flavor=base.flavor,
            cpus=base.cpus,
            mem_mb=base.mem_mb,
            disk_mb=base.disk_mb,
            pids=base.pids,
            egress=base.egress,
            profile=base.profile,
            runtime=base.runtime,
            containers=base.containers,
            drive=base.drive,
            memory=base.memory and not elsewhere,
        )
        return PlannedBox(box, settings.shortened, OTHER_DRIVE if elsewhere else "", base.id)

    @observed(Work.CREATE)
    async def _make(
        self,
        plan: PlannedBox,
        progress: Progress,
        *,
        old: Box | None,
        template: str | None = None,
        prepared_id: str | None = None,
    ) -> Box:
        private_key, host_key = self._assembly.new_identity()
        box = replace(plan.box, host_key=host_key, id=prepared_id or plan.box.id)
        try:
            box = await self._enter(box, old, progress)
        except BaseException:
            if prepared_id is not None:
                await ended(asyncio.ensure_future(self._prepared.discard(prepared_id, plan.box)))
            raise
        for one in plan.shortened:
            progress.note(one.note(box.ref))
        if self._previews and box.workspace is None:
            _note_preview_host(box, progress)
        progress.start(box)
        try:
            loss = ""
            copied = prepared_id is not None and await self._copies.claimed(box, private_key)
            if not copied and template is not None:
                copied = await self._copies.copied(box, private_key, template)
            if not copied:
                async with self._pending_removals.abortable(box):
                    await self._assembly.build(box, private_key, snapshot_id=plan.snapshot_id)
                loss = await self._sleep.revive(box)
            detail = loss or plan.detail
            box = await self._repository.change(box, BoxState.RUNNING, detail, memory=False)
        except BaseException as error:
            await self._undo(box)
            failure = plain(error)
            if failure is error:
                raise
            raise failure from error
        _log.info("box created", extra={"box": box.id, "image": box.image})
        return box

    async def _enter(self, box: Box, old: Box | None, progress: Progress) -> Box:
        """Write the row of a new box, and that of its workspace, and remove the old box.

        Nothing changes before all checks have passed. The old box is destroyed after its row.
        """
        cleared = False
        try:
            async with self._admission.room(box, new=True, old=old):
                if box.workspace is not None:
                    await self._store.add_workspace(box.owner, box.workspace, box.created)
                if old is not None:
                    await self._repository.remove(old)
                    cleared = True
                return await self._repository.add(box)
        finally:
            if old is not None and cleared:
                await self._clear(old, REMOVED)
                progress.note(f"removed the old box {old.ref} ({old.id[:12]})")

    async def renew(self, box: Box, request: BoxRequest, progress: Progress) -> Box:
        """Apply what a request may change in an existing box: its grace period and durability.

        Raises Conflict if the spec names another profile, image or flavor.
        """
        profile = await self._profile(box.owner, request.spec)
        renewal = renewed(
            request.spec,
            box,
            self._defaults_of(box.owner),
            profile=profile,
            durable=request.durable,
        )
        for note in renewal.notes:
            progress.note(note)
        if renewal.grace is not None:
            box = await self._repository.note(box, grace=renewal.grace)
        if renewal.durable is not None:
            box = await self._repository.note(box, durable=renewal.durable)
        return box

    async def _profile(self, owner: str, spec: BoxSpec) -> Profile | None:
        if spec.image is None:
            return None
        return profile_of(spec.image, await self._store.profiles(owner))

    async def _workspace_profile(
        self, owner: str, workspace: str | None, spec: BoxSpec
    ) -> Profile | None:
        """Return the profile of a workspace, for a new box whose spec names no image."""
        if spec.image is not None or workspace is None:
            return None
        for place in await self._store.list_workspaces(owner):
            if place.name == workspace and place.profile is not None:
                return profile_of(place.profile, await self._store.profiles(owner))
        return None

    def _check_image(self, image: str, profile: Profile | None) -> None:
        """Check the image before a row exists. The image of a profile may have been removed."""
        try:
            self._assembly.root(image)
        except (UnknownImage, Unavailable) as error:
            if profile is None:
                raise
            raise type(error)(f"profile {profile.name}: {error}") from None

    async def _check_disk(self, profile: Profile | None) -> None:
        """Raise NotFound, before a row exists, if the snapshot of a built profile is missing."""
        if profile is None or profile.snapshot is None:
            return
        if profile.snapshot not in await self._assembly.backend.snapshots():
            raise NotFound(
                f"profile {profile.name}: {profile.built_from}, of which it was built, is gone; "
                f"build it again: profiles build {profile.name} --from BOX"
            )

    async def wake(self, box: Box, progress: Progress = SILENT, *, detail: str = "") -> Box:
        """Start an existing box in any state, and return it.

        The row of a box that this call starts gets `detail`; `progress` gets the start.
        """
        if box.state in (BoxState.SUSPENDING, BoxState.RESUMING):
            box = await self.settle(box)
        if box.state is BoxState.RUNNING:
            try:
                async with self._pending_removals.abortable(box):
                    tunnel = await self._assembly.tunnel(box)
            except AgentLost as error:
                return await self.restart(box, error, progress)
            if tunnel is not None:
                return box
            box = await self._repository.change(box, BoxState.FAILED, DIED)
        return await self._start(box, detail, progress)

    async def steady(self, box: Box) -> Box:
        """Return the stored box. Settle it first if a failure left it between two states.

        Raises NotFound.
        """
        box = await self.present(box)
        if box.state in (BoxState.SUSPENDING, BoxState.RESUMING):
            return await self.settle(box)
        return box

    async def settle(self, box: Box) -> Box:
        """Bring a box that a failure left between two states to a steady state."""
        box = await self._sleep.settle(box, await self._assembly.look(box.id))
        if box.state is BoxState.RUNNING:
            await self._assembly.listen(box)
        return box

    async def suspend(self, box: Box) -> Box:
        """Suspend a box with its memory; a suspended box stays as it is. See `Sleep`."""
        box = await self.steady(box)
        self._sleep.check_able()
        if box.state is not BoxState.RUNNING:
            return box
        self._sleep.check(box)
        return await self._sleep.suspend(box)

    async def stop(self, box: Box, detail: str, *, why: str = "stopped") -> None:
        """Change a running box to `suspended` without memory: end its processes, keep its disk.

        Sessions of the box get the message "box NAME `why`".
        """
        self._attachments.tell_lost(box.id, f"box {box.ref} {why}")
        try:
            box = await self._repository.change(box, BoxState.SUSPENDING)
        finally:
            # Stop the box even without the database: the next start sees that it does not run.
            await self._assembly.stop(box)
        self._activity.asleep(box.id)
        await self._repository.change(box, BoxState.SUSPENDED, detail)

    async def restart(self, box: Box, why: AgentLost, progress: Progress = SILENT) -> Box:
        """Stop a running box whose agent is lost, and start it from its disk; its row says why.

        The tunnel closes first. So sessions end at once, and no code waits for the agent.
        """
        detail = f"started from its disk: {why}"
        _log.warning("box %s", detail, extra={"box": box.id})
        reason = f"restarts from its disk: {why}"
        self._attachments.tell_lost(box.id, f"box {box.ref} {reason}")
        await self._assembly.tunnels.close(box.id)
        await self.stop(box, f"{why}; {FROM_DISK}", why=reason)
        return await self._start(await self.present(box), detail, progress)

    @observed(Work.REMOVE)
    async def destroy(self, box: Box, why: str = REMOVED) -> None:
        """Remove the row of a box, then the box.

        If that fails, the timers retry. The next start destroys the remains of a box without a row.
        """
        await self._repository.remove(box)
        await self._clear(box, why)

    async def _clear(self, box: Box, why: str) -> None:
        """Remove the remains of a box without a row."""
        self._activity.forget(box.id)
        self._oom.forget(box.id)
        self._attachments.tell_lost(box.id, f"box {box.ref} {why}")
        try:
            await self._assembly.destroy(box)
        except BoxdError as error:
            self._timers.retry_removal(box, error)
        _log.info("box removed", extra={"box": box.id})

    @observed(Work.WAKE)
    async def _start(self, box: Box, detail: str, progress: Progress) -> Box:
        """Start a `suspended` or `failed` box from its memory or its disk."""
        if await self._assembly.is_lost(box):
            box, detail = await self._remake(box), REMADE
        async with self._admission.room(box, new=False):
            box = await self._repository.change(box, BoxState.RESUMING, step=Waking.PREPARE)
        progress.start(box)
        try:
            loss = await self._sleep.revive(box)
        except BaseException as error:
            failure = plain(error)
            await self._sleep.rest(box, f"did not start: {failure}")
            if failure is error:
                raise
            raise failure from error
        try:
            box = await self._repository.change(box, BoxState.RUNNING, loss or detail, memory=False)
        except BoxdError as error:
            self._timers.unsettled(box, error)
            raise
        _log.info("box started", extra={"box": box.id})
        return box

    async def _remake(self, box: Box) -> Box:
        """Create a fresh disk and a new identity for a box of which only the row exists."""
        private_key, host_key = self._assembly.new_identity()
        box = await self._repository.note(box, host_key=host_key, memory=False)
        try:
            await self._assembly.build(box, private_key)
        except BaseException:
            await self._assembly.destroy(box)
            raise
        _log.warning(
            "the disk of the box was lost; it starts from its image", extra={"box": box.id}
        )
        return box

    async def _undo(self, box: Box) -> None:
        """Remove a box after a failed creation. If that fails, the timers retry."""
        try:
            await self.destroy(box)
        except BoxdError as error:
            self._timers.retry_removal(box, error)
            try:
                await self._assembly.destroy(box)
            except BoxdError as second:
                _log.warning("%s; trying again", second, extra={"box": box.id})
