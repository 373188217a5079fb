"""Changes of one box: made, woken, started, stopped, destroyed, and undone when that fails.

A change is a row in the control database first; then the host follows. All of it is called under
the box's lock; the check of limits and the row that it allows run under the lock of all as well.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from boxd.boxes.dooms import Doomed
from boxd.boxes.records import new_box
from boxd.boxes.suspend import DIED, Waking
from boxd.boxes.wish import profile_of, renewed, wished
from boxd.errors import BoxdError, NotFound, Unavailable, UnknownImage
from boxd.model.box import BoxState
from boxd.names.preview import also_reads_as

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from boxd.boxes.admission import Admission
    from boxd.boxes.interface import Catalog
    from boxd.boxes.parts import Parts
    from boxd.boxes.suspend import Sleep
    from boxd.boxes.templates import Templates
    from boxd.boxes.wish import Defaults, Shortened
    from boxd.model.box import Box
    from boxd.model.profile import Profile
    from boxd.model.snapshot import Snapshot
    from boxd.names.spec import BoxSpec

REMOVED = "was removed"
REMADE = "its disk was lost; started anew from its image"
OTHER_DRIVE = "started from its disk: what it was made of had the drive of another workspace"

_log = logging.getLogger(__name__)


def _ignore(_box: Box) -> None:
    """Where a box goes that nobody waits for."""


def _tell_host(box: Box, said: Callable[[str], None]) -> None:
    """Says that a name looks like the preview host of another box."""
    if (other := also_reads_as(box.name)) is not None:
        said(
            f"preview host {box.name} is port {other.port} of a box {other.reference}; ports of"
            f" this box are at {box.name}-PORT"
        )


@dataclass(frozen=True, slots=True)
class Decided:
    """A new box against which nothing speaks but a limit, as it will be stored; it has no host key
    yet. `detail` is what its row tells once it runs; `snapshot_id`: its disk is that one's."""

    box: Box
    shortened: tuple[Shortened, ...]
    detail: str = ""
    snapshot_id: str = ""


class Changes:
    """See the module. Holds no state of its own; tells attachments and timers what changed."""

    def __init__(
        self,
        parts: Parts,
        *,
        sleep: Sleep,
        catalog: Catalog,
        admission: Admission,
        templates: Templates,
        defaults_of: Callable[[str], Defaults],
        previews: bool = False,
    ) -> None:
        self._store = parts.store
        self._rows = parts.rows
        self._assembly = parts.assembly
        self._sleep = sleep
        self._catalog = catalog
        self._admission = admission
        self._templates = templates
        self._clock = parts.clock
        self._defaults_of = defaults_of
        self._previews = previews
        self._locks = parts.locks
        self._attachments = parts.attachments
        self._activity = parts.activity
        self._timers = parts.timers
        self._dooms = parts.dooms

    async def find(self, owner: str, workspace: str | None, name: str) -> Box | None:
        """The box of a name as it is stored now; None when there is none."""
        found = await self._store.boxes_meant(owner, workspace, name)
        return found[0] if found else None

    async def present(self, box: Box) -> Box:
        """The box as it is stored now; NotFound when it was removed meanwhile."""
        present = await self._store.box(box.id)
        if present is None or self._dooms.has(box):
            raise Doomed(box)
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
        durable: bool = False,
        relay_key: str = "",
        old: Box | None = None,
        begun: Callable[[Box], None] = _ignore,
    ) -> Box:
        """A new running box of a spec; notes what was clamped. What fails leaves nothing.

        With a `relay_key` it is confidential for life, and no copy of a template, whose memory
        others have too.

        `begun` is told of the box when nothing speaks against it any more and its row stands.
        `old` is the box of that name whose place it takes: it is removed when nothing stands
        against the new one, so that a refusal leaves it. Raises what quota, catalog and `Assembly`
        raise.
        """
        decided = await self._decide(
            *(owner, workspace, spec),
            default_ttl=default_ttl,
            ephemeral=ephemeral,
            durable=durable,
            relay_key=relay_key,
        )
        if relay_key or decided.snapshot_id:
            return await self._make(decided, said, old=old, begun=begun)
        template = self._templates.find(decided.box)
        box = await self._make(decided, said, old=old, template=template, begun=begun)
        if template is None:
            self._templates.wanted(box)
        return box

    async def create_from(
        self,
        base: Snapshot,
        workspace: str | None,
        spec: BoxSpec,
        said: Callable[[str], None],
        *,
        old: Box | None = None,
    ) -> Box:
        """A new running box of a spec with the disk and memory of a snapshot; see `create`."""
        if old is not None and base.id not in await self._assembly.backend.snapshots():
            raise NotFound(f"what was kept of box {base.ref} is gone from this host")
        return await self._make(self._decide_from(base, workspace, spec), said, old=old)

    async def _decide(
        self,
        owner: str,
        workspace: str | None,
        spec: BoxSpec,
        *,
        default_ttl: timedelta | None,
        ephemeral: bool,
        durable: bool,
        relay_key: str,
    ) -> Decided:
        """What `create` makes. Changes nothing; raises what profile, catalog and image raise."""
        profile = await self._profile(owner, spec) or await self._usual(owner, workspace, spec)
        wish = wished(
            spec, self._defaults_of(owner), self._catalog, profile=profile, default_ttl=default_ttl
        )
        self._check_image(wish.image, profile)
        await self._check_disk(profile)
        box = new_box(
            *(owner, workspace, spec.name, wish),
            now=self._clock.now(),
            ephemeral=ephemeral,
            durable=durable,
            relay_key=relay_key,
        )
        return Decided(box, wish.shortened, snapshot_id=(profile and profile.snapshot) or "")

    def _decide_from(self, base: Snapshot, workspace: str | None, spec: BoxSpec) -> Decided:
        """What `create_from` makes; see `_decide`."""
        wish = wished(spec, self._defaults_of(base.owner), self._catalog)
        self._check_image(base.image, None)
        box = new_box(
            *(base.owner, workspace, spec.name, wish), now=self._clock.now(), ephemeral=False
        )
        # Files that its processes have open on /wrk are those of one drive and of no other.
        elsewhere = base.memory and base.drive and workspace != base.workspace
        box = replace(
            box,
            image=base.image,
            flavor=base.flavor,
            cpus=base.cpus,
            mem_mb=base.mem_mb,
            disk_mb=base.disk_mb,
            pids=base.pids,
            egress=base.egress,
            drive=base.drive,
            memory=base.memory and not elsewhere,
        )
        return Decided(box, wish.shortened, OTHER_DRIVE if elsewhere else "", base.id)

    async def _make(
        self,
        decided: Decided,
        said: Callable[[str], None],
        *,
        old: Box | None,
        template: str | None = None,
        begun: Callable[[Box], None] = _ignore,
    ) -> Box:
        private_key, host_key = self._assembly.new_identity()
        box = await self._enter(replace(decided.box, host_key=host_key), old, said)
        for one in decided.shortened:
            said(one.told(box.ref))
        if self._previews and box.workspace is None:
            _tell_host(box, said)
        begun(box)
        try:
            lost = ""
            if template is None or not await self._copied(box, private_key, template):
                async with self._dooms.breakable(box):
                    await self._assembly.build(box, private_key, snapshot_id=decided.snapshot_id)
                lost = await self._sleep.revive(box)
            detail = lost or decided.detail
            box = await self._rows.change(box, BoxState.RUNNING, detail, memory=False)
        except BaseException as error:
            await self._undo(box)
            failure = _plain(error)
            if failure is error:
                raise
            raise failure from error
        _log.info("box created", extra={"box": box.id, "image": box.image})
        return box

    async def _enter(self, box: Box, old: Box | None, said: Callable[[str], None]) -> Box:
        """The row of a new box, and that of its workspace, in the place of an old box.

        Until everything is decided nothing is changed; the old box goes with its row.
        """
        cleared = False
        try:
            async with self._admission.room(box, new=True, old=old):
                if box.workspace is not None:
                    await self._store.add_workspace(box.owner, box.workspace, box.created)
                if old is not None:
                    await self._rows.remove(old)
                    cleared = True
                return await self._rows.add(box)
        finally:
            if old is not None and cleared:
                await self._clear(old, REMOVED)
                said(f"removed the old box {old.ref} ({old.id[:12]})")

    async def _copied(self, box: Box, private_key: bytes, template: str) -> bool:
        """Whether a new box runs as a copy of a template; if not, nothing of the try is left."""
        try:
            async with self._dooms.breakable(box):
                await self._assembly.build(box, private_key, snapshot_id=template)
                await self._assembly.start(box, copied=True)
        except (BoxdError, ExceptionGroup) as error:
            failure = _plain(error)
            if isinstance(failure, Doomed) or not isinstance(failure, BoxdError):
                raise
            _log.warning("box not copied: %s; booting it", failure, extra={"box": box.id})
            await self._templates.lost(box)
            await self._assembly.destroy(box)
            return False
        _log.info("box copied from a template", extra={"box": box.id})
        return True

    async def renew(
        self,
        box: Box,
        spec: BoxSpec,
        said: Callable[[str], None],
        *,
        durable: bool | None = None,
    ) -> Box:
        """Applies what a spec may change in an existing box; notes what it may not."""
        profile = await self._profile(box.owner, spec)
        renewal = renewed(spec, box, self._defaults_of(box.owner), profile=profile)
        for note in renewal.notes:
            said(note)
        if renewal.grace is not None:
            box = await self._rows.note(box, grace=renewal.grace)
        if durable is not None and durable != box.durable:
            box = await self._rows.note(box, durable=durable)
        return box

    async def _profile(self, owner: str, spec: BoxSpec) -> Profile | None:
        if spec.image is None:
            return None
        return profile_of(spec.image, await self._store.profiles(owner))

    async def _usual(self, owner: str, workspace: str | None, spec: BoxSpec) -> Profile | None:
        """The profile of a workspace, for a new box whose spec names no image."""
        if spec.image is not None or workspace is None:
            return None
        for place in await self._store.list_workspaces(owner):
            if place.name == workspace and place.profile is not None:
                return profile_of(place.profile, await self._store.profiles(owner))
        return None

    def _check_image(self, image: str, profile: Profile | None) -> None:
        """Before a row is made. A profile's image can have gone since the profile was made."""
        try:
            self._assembly.root(image)
        except (UnknownImage, Unavailable) as error:
            if profile is None:
                raise
            raise type(error)(f"profile {profile.name}: {error}") from None

    async def _check_disk(self, profile: Profile | None) -> None:
        """NotFound, before a row is made, when what a profile was built of is gone."""
        if profile is None or profile.snapshot is None:
            return
        if profile.snapshot not in await self._assembly.backend.snapshots():
            raise NotFound(
                f"profile {profile.name}: {profile.built_from}, of which it was built, is gone; "
                f"build it again: profiles build {profile.name} --from BOX"
            )

    async def wake(
        self, box: Box, *, detail: str = "", begun: Callable[[Box], None] = _ignore
    ) -> Box:
        """Has an existing box run, whatever state its row tells.

        `detail` is what its row tells of a box that is started for it; `begun` is told of the box
        when it is on its way.
        """
        if box.state in (BoxState.SUSPENDING, BoxState.RESUMING):
            box = await self.settle(box)
        if box.state is BoxState.RUNNING:
            async with self._dooms.breakable(box):
                tunnel = await self._assembly.tunnel(box)
            if tunnel is not None:
                return box
            box = await self._rows.change(box, BoxState.FAILED, DIED)
        return await self._start(box, detail, begun)

    async def steady(self, box: Box) -> Box:
        """The box as it is stored now, in a steady state. NotFound."""
        box = await self.present(box)
        if box.state in (BoxState.SUSPENDING, BoxState.RESUMING):
            return await self.settle(box)
        return box

    async def settle(self, box: Box) -> Box:
        """Brings a box to a steady state that a failure left between two."""
        box = await self._sleep.settle(box, await self._assembly.look(box.id))
        if box.state is BoxState.RUNNING:
            await self._assembly.listen(box)
        return box

    async def suspend(self, box: Box) -> Box:
        """Puts a box to sleep with its memory; one that sleeps stays as it is. See `Sleep`."""
        box = await self.steady(box)
        self._sleep.check_able()
        if box.state is not BoxState.RUNNING:
            return box
        self._sleep.check(box)
        return await self._sleep.suspend(box)

    async def stop(self, box: Box, detail: str) -> None:
        """From `running` to `suspended`: ends the box's processes; its disk stays."""
        self._attachments.tell_lost(box.id, f"box {box.ref} stopped")
        try:
            box = await self._rows.change(box, BoxState.SUSPENDING)
        finally:
            # Also without the database: the next start sees that the box does not run.
            await self._assembly.stop(box)
        self._activity.asleep(box.id)
        await self._rows.change(box, BoxState.SUSPENDED, detail)

    async def destroy(self, box: Box, why: str = REMOVED) -> None:
        """Row first: without it the next start destroys what is left here.

        What fails afterwards is tried again by the timer.
        """
        await self._rows.remove(box)
        await self._clear(box, why)

    async def _clear(self, box: Box, why: str) -> None:
        """What is left of a box without a row."""
        self._activity.forget(box.id)
        self._attachments.tell_lost(box.id, f"box {box.ref} {why}")
        try:
            await self._assembly.destroy(box)
        except BoxdError as error:
            self._timers.doom(box, error)
        _log.info("box removed", extra={"box": box.id})

    async def _start(self, box: Box, detail: str, begun: Callable[[Box], None]) -> Box:
        """From `suspended` or `failed`: the box goes on from its memory, or starts on its disk."""
        if self._assembly.is_lost(box):
            box, detail = await self._remake(box), REMADE
        async with self._admission.room(box, new=False):
            box = await self._rows.change(box, BoxState.RESUMING, step=Waking.PREPARE)
        begun(box)
        try:
            lost = await self._sleep.revive(box)
        except BaseException as error:
            failure = _plain(error)
            await self._sleep.rest(box, f"did not start: {failure}")
            if failure is error:
                raise
            raise failure from error
        try:
            box = await self._rows.change(box, BoxState.RUNNING, lost or detail, memory=False)
        except BoxdError as error:
            self._timers.unsettled(box, error)
            raise
        _log.info("box started", extra={"box": box.id})
        return box

    async def _remake(self, box: Box) -> Box:
        """A box of which only the row is left gets a fresh disk and an identity of its own."""
        private_key, host_key = self._assembly.new_identity()
        box = await self._rows.note(box, host_key=host_key, memory=False)
        try:
            await self._assembly.build(box, private_key)
        except BaseException:
            await self._assembly.destroy(box)
            raise
        _log.warning("the disk of the box was lost; it starts anew", extra={"box": box.id})
        return box

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
