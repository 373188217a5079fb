"""Life of boxes: its verbs, and who holds a box awake. The only way to change the state of a box.

The verbs decide under the box's lock; `changes` makes the change, a row in the control database
first, then the host. What a crash leaves in between is put right by `adoption` at the next start.

Critical sections: everything that decides on a box or changes it runs under the lock of its
(owner, workspace, name), holds being counted there too. A start or removal runs in a task of its
own, so that a caller who goes away never leaves a box half made.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from box_guest import protocol
from boxd.boxes.acts import DueActs
from boxd.boxes.admission import Admission
from boxd.boxes.adoption import Adoption
from boxd.boxes.attachments import Hold
from boxd.boxes.changes import Changes
from boxd.boxes.dialling import dial
from boxd.boxes.dooms import Doomed
from boxd.boxes.drives import BoxDrives
from boxd.boxes.expiry import ending
from boxd.boxes.fork import Forks
from boxd.boxes.parts import Parts
from boxd.boxes.pins import Pins
from boxd.boxes.policy import SHIPPED, Policy
from boxd.boxes.snapshots import Snapshots
from boxd.boxes.sources import Sources
from boxd.boxes.suspend import Sleep
from boxd.boxes.templates import Templates
from boxd.boxes.usage import UsageSampler
from boxd.boxes.wish import Defaults
from boxd.errors import BoxdError, Confidential, Conflict, InvalidKey
from boxd.model.box import Box, BoxState
from boxd.model.view import Use
from boxd.secret import random_hex

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
    from datetime import timedelta

    from boxd.boxes.assembly import Assembly
    from boxd.boxes.expiry import Expiry
    from boxd.boxes.hostlimits import HostLimits
    from boxd.boxes.interface import Catalog
    from boxd.boxes.quota import Tier
    from boxd.clock import HostClock
    from boxd.model.snapshot import Snapshot
    from boxd.names.spec import BoxSpec
    from boxd.store.interface import ControlStore
    from boxd.tunnel.channel import Tunnel
    from boxd.tunnel.stream import ByteStream

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Attachment:
    """A running box, held awake, and the connection to its agent. Sessions and commands that are
    started through it get `env` beneath what their client sets."""

    box: Box
    tunnel: Tunnel
    hold: Hold
    env: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def lost(self) -> str:
        """Why the connection ended before what ran in it."""
        return self.hold.lost or "the connection to the box was lost"


class Lifecycle:
    """See the module. `automount`: new boxes get /wrk unasked. `policy`: times of unused boxes.
    `tier_of`: the limits of an owner, asked for each time.
    `host`: what all boxes may take together. `templates`: new boxes are copies where that works.
    `sources`: from where owners come; None: only loopback is no source. `previews`: ports of boxes
    have hosts of their own, so that makers are told of names that look like one.
    """

    def __init__(
        self,
        *,
        store: ControlStore,
        assembly: Assembly,
        catalog: Catalog,
        tier_of: Callable[[str], Tier],
        clock: HostClock,
        default_image: str,
        automount: bool,
        policy: Policy = SHIPPED,
        host: HostLimits | None = None,
        templates: bool = False,
        sources: Sources | None = None,
        previews: bool = False,
    ) -> None:
        self.host = host
        self.usage = UsageSampler(assembly.backend, clock)
        self.sources = Sources() if sources is None else sources
        self._tasks: set[asyncio.Task[Any]] = set()
        self._parts = parts = Parts.made(store, clock, assembly, policy)
        self.census = parts.census
        self._sleep = Sleep(parts)
        self.templates = Templates(parts, on=templates)

        def defaults_of(owner: str) -> Defaults:
            tier = tier_of(owner)
            return Defaults(
                image=default_image,
                backend=assembly.backend.name,
                drive=automount and assembly.drives is not None,
                deadline_max=tier.deadline_max,
                policy=policy,
                disk_mb=tier.disk_mb,
            )

        self._changes = Changes(
            parts,
            sleep=self._sleep,
            catalog=catalog,
            admission=Admission(
                store=store,
                tier_of=tier_of,
                host=host,
                sources=self.sources,
                locks=parts.locks,
            ),
            templates=self.templates,
            defaults_of=defaults_of,
            previews=previews,
        )
        self._acts = DueActs(parts, sleep=self._sleep, changes=self._changes)
        self._adoption = Adoption(parts, sleep=self._sleep, changes=self._changes)
        self._pins = Pins(parts, self._changes)
        self._drives = BoxDrives(parts, self._changes)
        self.snapshots = Snapshots(parts, sleep=self._sleep, changes=self._changes, tier_of=tier_of)
        self._forks = Forks(parts, changes=self._changes, snapshots=self.snapshots)
        self._store, self._assembly, self._locks = store, assembly, parts.locks
        self._timers, self.activity = parts.timers, parts.activity
        self.attachments, self.feed, self.ends = parts.attachments, parts.feed, parts.ends

    def use(self, box: Box) -> Use:
        """How the box is used, and what happens to it next by itself."""
        return Use(
            attached=self.attachments.count(box.id),
            why=self.activity.why(box),
            pinned_until=self.activity.pinned_until(box),
            next=self._timers.next_act(box),
            usage=self.usage.last(box.id),
        )

    def check_suspends(self) -> None:
        """Unsupported where boxes cannot be suspended."""
        self._sleep.check_able()

    async def start(self, *, stopping: bool = False) -> None:
        """Adopts what an earlier daemon left, then begins to enforce deadlines.

        `stopping`: only to stop boxes; then nothing is removed, started or measured.
        """
        boxes = await self._store.all_boxes()
        await self._parts.marks.start(self._store, boxes)
        self.census.fill(boxes)
        await self._adoption.adopt_all(stopping=stopping)
        if stopping:
            return
        await self.snapshots.clean(await self.templates.start())
        await self._adoption.release_unused()
        self._timers.start(self._acts)
        self.usage.start()
        self.ends.start(await self._store.ends(self._parts.clock.now()))
        self._spawn(self._adoption.start_again())

    async def close(self, *, stop_boxes: bool) -> None:
        """Lets what is under way finish (each step is bounded); ends all boxes if asked to."""
        self.ends.close()
        await self.usage.close()
        await self._timers.close()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.templates.close()
        try:
            if stop_boxes:
                await self._adoption.stop_all()
            await self._acts.upkeep()
        finally:
            await self._assembly.tunnels.close_all()

    async def up(
        self,
        owner: str,
        workspace: str | None,
        spec: BoxSpec,
        *,
        notes: Callable[[str], None] | None = None,
        default_ttl: timedelta | None = None,
        durable: bool | None = None,
        hold: Hold | None = None,
        relay: str | None = None,
        ephemeral: bool | None = None,
        wait: bool = True,
    ) -> Box:
        """The running box of a spec: made when it is not there, started when it does not run.

        `default_ttl` is the deadline of a new box whose spec and profile have none; `durable` None
        leaves it as it is. `hold`, if given, is counted for the box under its lock. `relay` is the
        public key of who comes by the relay: a new box is confidential then. `ephemeral`: whether
        a new box goes with its last hold; None: one without a name does. Without `wait`
        it is returned as soon as nothing speaks against it and its row tells that it is on its way.
        Raises what `Assembly.start` and the quota raise.
        """
        name = f"tmp-{random_hex(5)}" if spec.anonymous else spec.name
        named, said = replace(spec, name=name), notes or _log.debug
        begun: asyncio.Future[Box] = asyncio.get_running_loop().create_future()

        def begin(box: Box) -> None:
            begun.set_result(box)
            _tell_begun(hold, box)

        async def change() -> Box:
            async with self._locks.name(owner, workspace, name):
                box = await self._changes.find(owner, workspace, name)
                if box is not None and self._parts.dooms.has(box) and not spec.fresh:
                    raise Doomed(box)
                if box is not None and box.state is BoxState.CREATING and not spec.fresh:
                    await self._changes.destroy(box)
                    box = None
                if box is None or spec.fresh:
                    box = await self._changes.create(
                        owner,
                        workspace,
                        named,
                        said,
                        default_ttl=default_ttl,
                        ephemeral=spec.anonymous if ephemeral is None else ephemeral,
                        durable=bool(durable),
                        relay_key=relay or "",
                        old=box,
                        begun=begin,
                    )
                else:
                    _check_way(box, hold, relay)
                    box = await self._changes.renew(box, spec, said, durable=durable)
                    box = await self._changes.wake(box, begun=begin)
                return self._counted(box, hold)

        return await (self._shielded(change(), hold) if wait else self._begun(change(), begun))

    def check_image(self, name: str) -> None:
        """Raises UnknownImage for what boxes can never start from, Unavailable for not yet."""
        self._assembly.root(name)

    async def wake(self, box: Box, *, hold: Hold | None = None, relay: str | None = None) -> Box:
        """Has an existing box run; NotFound when it was removed meanwhile. See `up`."""

        async def change() -> Box:
            async with self._locks.box(box):
                present = await self._changes.present(box)
                _check_way(present, hold, relay)
                begin = partial(_tell_begun, hold)
                return self._counted(await self._changes.wake(present, begun=begin), hold)

        return await self._shielded(change(), hold)

    async def suspend(self, box: Box) -> Box:
        """Puts a box to sleep with its memory; one that sleeps stays as it is.

        Conflict names who uses the box, or tells why it cannot be suspended; then it runs on.
        Unsupported where boxes cannot be suspended; NotFound when it was removed meanwhile.
        """

        async def change() -> Box:
            async with self._locks.standstills, self._locks.box(box):
                return await self._changes.suspend(await self._changes.present(box))

        return await self._shielded(change(), None)

    async def snapshot(self, box: Box, name: str | None) -> Snapshot:
        """See `Snapshots.create`."""
        return await asyncio.shield(self._spawn(self.snapshots.create(box, name)))

    async def restore(self, box: Box, name: str) -> Box:
        """See `Snapshots.restore`."""
        return await asyncio.shield(self._spawn(self.snapshots.restore(box, name)))

    async def fork(
        self,
        base: Box | Snapshot,
        workspace: str | None,
        spec: BoxSpec,
        *,
        notes: Callable[[str], None] | None = None,
    ) -> Box:
        """See `Forks`."""
        said = notes or _log.debug
        if isinstance(base, Box):
            work = self._forks.fork(base, workspace, spec, said)
        else:
            work = self._forks.fork_snapshot(base, workspace, spec, said)
        return await asyncio.shield(self._spawn(work))

    async def remove(self, box: Box) -> None:
        """Destroys the box whatever holds it; no error when it is gone already."""
        await asyncio.shield(self._spawn(self._remove(box)))

    async def _remove(self, box: Box) -> None:
        with self._parts.dooms.doom(box):
            await self._remove_doomed(box)

    async def _remove_doomed(self, box: Box) -> None:
        async with self._locks.box(box):
            if await self._store.box(box.id) is not None:
                await self._changes.destroy(box)

    async def pin(self, box: Box, span: timedelta, why: str) -> Box:
        """See `Pins.pin`."""
        return await self._pins.pin(box, span, why)

    async def unpin(self, box: Box) -> Box:
        """See `Pins.unpin`."""
        return await self._pins.unpin(box)

    @asynccontextmanager
    async def attach(
        self,
        owner: str,
        workspace: str | None,
        spec: BoxSpec,
        *,
        why: str,
        key_id: str | None,
        expiry: Expiry | None = None,
        notes: Callable[[str], None] | None = None,
        begun: Callable[[Box], None] | None = None,
        default_ttl: timedelta | None = None,
        relay: str | None = None,
        ephemeral: bool | None = None,
    ) -> AsyncIterator[Attachment]:
        """Holds the box of a spec while the context lasts; see `up`. `expiry`: of the key. `begun`
        is told of the box if it is made or woken for it.

        Confidential when only the relay leads there, Conflict when the relay does not.
        """
        hold = Hold(owner, "", why, key_id, begun=begun)
        async with self._revocable(hold, expiry):
            box = await self.up(
                *(owner, workspace, spec),
                notes=notes,
                default_ttl=default_ttl,
                hold=hold,
                relay=relay,
                ephemeral=ephemeral,
            )
            async with self._held(box, hold) as attachment:
                yield attachment

    @asynccontextmanager
    async def attach_existing(
        self,
        box: Box,
        *,
        why: str,
        key_id: str | None,
        expiry: Expiry | None = None,
        begun: Callable[[Box], None] | None = None,
        relay: str | None = None,
    ) -> AsyncIterator[Attachment]:
        """Holds an existing box while the context lasts; see `wake` and `attach`."""
        hold = Hold(box.owner, "", why, key_id, begun=begun)
        async with self._revocable(hold, expiry):
            box = await self.wake(box, hold=hold, relay=relay)
            async with self._held(box, hold) as attachment:
                yield attachment

    async def dial(self, attachment: Attachment, port: int) -> ByteStream:
        """See `dialling.dial`."""
        return await dial(self._assembly.backend, attachment.tunnel, port)

    async def request(self, box_id: str, verb: str, params: dict[str, Any]) -> dict[str, object]:
        """What the agent of a box asks; see `BoxDrives.request` and `Pins.request`."""
        if verb == protocol.WORKSPACE:
            return await self._drives.request(box_id, params["verb"])
        return await self._pins.request(box_id, verb, params)

    def report(self, box_id: str, shells: int) -> None:
        """The agent of a box tells how many shells there are that nobody is attached to."""
        self.activity.report(box_id, shells)
        box = self._timers.known(box_id)
        if box is not None:
            self.feed.fleet(box.owner, box.workspace)

    def misbehaved(self, box_id: str, text: str) -> None:
        """The agent of a box was cut off: its row tells why. Returns at once."""
        self._spawn(self._tell(box_id, text))

    async def _tell(self, box_id: str, text: str) -> None:
        try:
            box = await self._store.box(box_id)
            if box is None:
                return
            async with self._locks.box(box):
                present = await self._store.box(box_id)
                if present is not None and present.state is BoxState.RUNNING:
                    await self._parts.rows.note(present, detail=text)
        except BoxdError as error:
            _log.warning("not told of a box: %s", error, extra={"box": box_id})

    def mount_restarted(self, owner: str, workspace: str | None) -> None:
        """The mount of a volume was replaced on this host.

        Returns at once: a box's lock may be held by one who waits for that very mount.
        """
        self._spawn(self._reattach_logged(owner, workspace))

    async def reattach(self, owner: str, workspace: str | None) -> None:
        """See `BoxDrives.reattach`."""
        await self._drives.reattach(owner, workspace)

    async def _reattach_logged(self, owner: str, workspace: str | None) -> None:
        try:
            await self.reattach(owner, workspace)
        except BoxdError as error:
            _log.warning("restarted mount not attached everywhere: %s", error)

    # --- holds ----------------------------------------------------------------------------

    def _counted(self, box: Box, hold: Hold | None) -> Box:
        if hold is not None:
            hold.box_id, hold.workspace = box.id, box.workspace
            self.attachments.add(hold)
        return box

    @asynccontextmanager
    async def visit(
        self, owner: str, *, why: str, key_id: str | None, expiry: Expiry | None = None
    ) -> AsyncIterator[None]:
        """A connection of an owner that holds no box. Raises in it why it may not go on."""
        async with self._revocable(Hold(owner, "", why, key_id), expiry):
            yield

    @asynccontextmanager
    async def _revocable(self, hold: Hold, expiry: Expiry | None) -> AsyncIterator[None]:
        """Who attaches, from the first wish on: raises why it was ended as soon as it is."""
        task = asyncio.current_task()
        reason: BoxdError | None = None

        def end(why: BoxdError) -> None:
            nonlocal reason
            if task is not None and reason is None:
                reason = why
                task.cancel()

        hold.end = end
        self.attachments.expect(hold)
        try:
            with ending(expiry, self._parts.clock, lambda text: end(InvalidKey(text))):
                yield
        except asyncio.CancelledError:
            if reason is not None and task is not None and task.uncancel() == 0:
                raise reason from None
            raise
        finally:
            hold.end = None
            self.attachments.finish(hold)

    @asynccontextmanager
    async def _held(self, box: Box, hold: Hold) -> AsyncIterator[Attachment]:
        try:
            yield Attachment(box, await self._assembly.tunnels.get(box.id), hold)
        finally:
            self._released(box, hold)

    def _released(self, box: Box, hold: Hold) -> None:
        if self.attachments.remove(hold) > 0:
            return
        if self._timers.knows(box.id):
            self.activity.left(box.id)
        if box.ephemeral:
            self._spawn(self._remove_unheld(box))

    async def _remove_unheld(self, box: Box) -> None:
        async with self._locks.box(box):
            unheld = self.attachments.count(box.id) == 0
            if unheld and await self._store.box(box.id) is not None:
                await self._changes.destroy(box)

    # --- tasks that outlive their caller ---------------------------------------------------

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

    async def _begun(self, work: Coroutine[Any, Any, Box], begun: asyncio.Future[Box]) -> Box:
        """What `work` made of a box when it had begun, or at its end if that comes first."""
        task = self._spawn(work)
        task.add_done_callback(lambda done: _log_failure(done, unseen=begun.done()))
        await asyncio.wait({task, begun}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else begun.result()

    def _abandoned(self, done: asyncio.Task[Box], hold: Hold) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        self._released(done.result(), hold)


def _check_way(box: Box, hold: Hold | None, relay: str | None) -> None:
    """Who attaches comes by the one way that leads into the box: a confidential one is never looked
    into, and another one cannot become confidential any more."""
    if hold is None:
        return
    if box.confidential and relay is None:
        raise Confidential(
            f"box {box.ref} is confidential: only its own SSH server lets in; use {box.relayed}"
        )
    if relay is not None and not box.confidential:
        raise Conflict(f"box {box.ref} is not confidential; use a new name")


def _tell_begun(hold: Hold | None, box: Box) -> None:
    if hold is not None and hold.begun is not None:
        hold.begun(box)


def _log_failure(done: asyncio.Task[Box], *, unseen: bool) -> None:
    """Of what nobody waits for; the row of a box that was there before tells it too."""
    error = None if done.cancelled() else done.exception()
    if error is not None and unseen:
        _log.warning("box did not start: %s", error)
