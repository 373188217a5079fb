"""Snapshots of boxes: taken in one standstill, kept beyond the life of the box, restored into it.

A snapshot has its row first, which is `ready` when the host holds all of it. What a crash leaves of
one that was not is removed at the next start, with everything on the host that no row names.

Restoring puts the box to sleep, and keeps that state as the snapshot `pre-restore` before anything
is changed. A crash before leaves it asleep with its memory, one in the middle brings that back
(`Sleep.settle`). An older `pre-restore` has another name until the box has the wanted state; after
a crash it is `pre-restore` again, or was replaced. If it is itself what was wanted, it then keeps
the other name: `pre-restore-2`.
"""

from __future__ import annotations

import itertools
import logging
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from boxd.boxes.suspend import PRE_RESTORE, Waking
from boxd.errors import BoxdError, Conflict, NotFound, QuotaExceeded, Unsupported
from boxd.model.box import BoxState
from boxd.model.snapshot import snapshot_of
from boxd.names.words import shown
from boxd.secret import random_hex

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from boxd.boxes.changes import Changes
    from boxd.boxes.parts import Parts
    from boxd.boxes.quota import Tier
    from boxd.boxes.suspend import Sleep
    from boxd.model.box import Box
    from boxd.model.snapshot import Snapshot

OLD = f"{PRE_RESTORE}-old"
RESERVED = re.compile(rf"{PRE_RESTORE}(-old)?(-[0-9]+)?")
"""Names that restores give."""

_log = logging.getLogger(__name__)


class Snapshots:
    """See the module. Holds no state of its own; takes the locks that it needs."""

    def __init__(
        self, parts: Parts, *, sleep: Sleep, changes: Changes, tier_of: Callable[[str], Tier]
    ) -> None:
        self._store = parts.store
        self._rows = parts.rows
        self._clock = parts.clock
        self._assembly = parts.assembly
        self._locks = parts.locks
        self._dooms = parts.dooms
        self._timers = parts.timers
        self._sleep = sleep
        self._changes = changes
        self._tier_of = tier_of

    async def clean(self, keep: Collection[str]) -> None:
        """Removes what a crash left; `keep` are ids on the host that have no row. At the start."""
        for snapshot in await self._store.all_snapshots():
            if not snapshot.ready:
                await self._store.remove_snapshot(snapshot.id)
        await self._name_again()
        kept = {*keep, *(one.id for one in await self._store.all_snapshots())}
        for snapshot_id in await self._assembly.backend.snapshots():
            if snapshot_id not in kept:
                await self.drop(snapshot_id)

    async def find(self, owner: str, workspace: str | None, box_name: str, name: str) -> Snapshot:
        """A whole snapshot by its name. NotFound."""
        for one in await self._store.snapshots(owner):
            place = (one.workspace, one.box_name, one.name)
            if one.ready and place == (workspace, box_name, name):
                return one
        raise NotFound(f"no snapshot {shown(name)} of box {shown(box_name)}; see: snapshot ls")

    async def create(self, box: Box, name: str | None) -> Snapshot:
        """Keeps the present state of a box; `name` None: the first free of s1, s2, ...

        A running box stands still meanwhile. Conflict names who uses it, or says that there is a
        snapshot of the name; QuotaExceeded, Unsupported, NotFound.
        """
        self.check_able()
        async with self._locks.standstills, self._locks.box(box):
            box = await self._changes.steady(box)
            self.check(box)
            return await self._keep(box, name)

    async def remove(self, snapshot: Snapshot) -> None:
        """Forgets a snapshot. What is made of it meanwhile goes on."""
        await self._store.remove_snapshot(snapshot.id)
        await self.drop(snapshot.id)

    async def restore(self, box: Box, name: str) -> Box:
        """Suspends the box and gives it the state of one of its snapshots; it sleeps afterwards.

        Its present state is kept as `pre-restore`, in the place of an older one. Conflict names who
        uses the box; NotFound, QuotaExceeded.
        """
        self.check_able()
        async with self._locks.standstills, self._locks.box(box):
            box = await self._changes.steady(box)
            wanted = await self.find(box.owner, box.workspace, box.name, name)
            if (wanted.box_id, wanted.image) != (box.id, box.image):
                raise Conflict(
                    f"snapshot {name} is of an older box {box.ref}; make a box of it: "
                    f"snapshot fork {box.ref}@{name} NAME"
                )
            self.check(box)
            older = await self._older(box)
            present = await self._store.snapshots(box.owner)
            try:
                self._tier_of(box.owner).check_snapshots(len(present) - (older is not None))
            except QuotaExceeded as error:
                raise QuotaExceeded(
                    f"{error}. One more: a restore keeps the present box as snapshot {PRE_RESTORE}"
                ) from None
            if box.state is BoxState.RUNNING:
                box = await self._sleep.suspend(box)
            await self._keep_before(box, older, wanted)
            try:
                box = await self._bring(box, wanted)
            except Exception:
                if older is not None and older.id != wanted.id:
                    await self._forget(older)
                raise
            if older is not None:
                await self._forget(older)
            return box

    def check_able(self) -> None:
        """Unsupported where there are no snapshots."""
        if not self._assembly.backend.capabilities().snapshot:
            raise Unsupported("this host cannot keep snapshots of boxes")

    def check(self, box: Box) -> None:
        """Refuses a box whose state cannot be taken now: one in use, or confidential."""
        if box.confidential:
            raise Conflict(
                f"box {box.ref} is confidential: its state is never copied; "
                f"it is reached by {box.relayed}"
            )
        if box.state is BoxState.RUNNING:
            self._sleep.check_able()
            self._sleep.check(box)

    async def take(self, box: Box, snapshot_id: str, *, lasting: bool = True) -> None:
        """Keeps disk and memory of a box in one standstill; the box is locked and checked.

        A running one goes on afterwards. Without `lasting` what is taken may be lost with the next
        crash of the host.
        """
        backend = self._assembly.backend
        if box.state is not BoxState.RUNNING:
            await backend.snapshot(box.id, snapshot_id, lasting=lasting)
            return
        await self._assembly.tunnels.quiesce(box.id)
        try:
            await backend.freeze(box.id)
            async with self._dooms.breakable(box):
                await backend.snapshot(box.id, snapshot_id, lasting=lasting)
        finally:
            await self._go_on(box)

    async def drop(self, snapshot_id: str) -> None:
        """Removes it from the host, at the latest at the next start."""
        try:
            await self._assembly.backend.drop_snapshot(snapshot_id)
        except BoxdError as error:
            _log.warning("snapshot not removed from the host: %s; the next start does it", error)

    async def _go_on(self, box: Box) -> None:
        """Nothing is raised: what fails is done later."""
        try:
            await self._assembly.backend.thaw(box.id)
            await self._assembly.listen(box)
        except (BoxdError, OSError) as error:
            self._timers.unsettled(box, error)

    async def _keep(self, box: Box, name: str | None, *, leaving: int = 0) -> Snapshot:
        """Row and state of a snapshot; what fails leaves neither. `leaving`: how many it replaces,
        which are there still."""
        async with self._locks.sums():
            present = await self._store.snapshots(box.owner)
            self._tier_of(box.owner).check_snapshots(len(present) - leaving)
            taken = {one.name for one in present if one.ref == box.ref}
            snapshot = snapshot_of(
                box, random_hex(16), name or _free_name(taken, "s", 1), self._clock.now()
            )
            await self._store.add_snapshot(snapshot)
        try:
            await self.take(box, snapshot.id)
            size = await self._assembly.backend.snapshot_bytes(snapshot.id)
            await self._store.finish_snapshot(snapshot.id, size)
        except BaseException:
            await self._forget(snapshot)
            raise
        _log.info("snapshot taken", extra={"box": box.id})
        return replace(snapshot, ready=True, size_bytes=size)

    async def _forget(self, snapshot: Snapshot) -> None:
        """After a failure. Nothing is raised: the next start does what fails."""
        try:
            await self._store.remove_snapshot(snapshot.id)
        except BoxdError as error:
            _log.warning("snapshot not forgotten: %s; the next start does it", error)
        await self.drop(snapshot.id)

    async def _older(self, box: Box) -> Snapshot | None:
        try:
            return await self.find(box.owner, box.workspace, box.name, PRE_RESTORE)
        except NotFound:
            return None

    async def _keep_before(self, box: Box, older: Snapshot | None, wanted: Snapshot) -> None:
        """Keeps the state of a sleeping box; an older one makes room for it, and stays."""
        if older is None:
            await self._keep(box, PRE_RESTORE)
            return
        taken = [one.name for one in await self._store.snapshots(box.owner) if _same(one, older)]
        stem, first = (PRE_RESTORE, 2) if older.id == wanted.id else (OLD, 1)
        await self._store.rename_snapshot(older.id, _free_name(taken, f"{stem}-", first))
        try:
            await self._keep(box, PRE_RESTORE, leaving=1)
        except BaseException:
            try:
                await self._store.rename_snapshot(older.id, PRE_RESTORE)
            except BoxdError as error:
                _log.warning("snapshot has another name: %s; the next start mends it", error)
            raise

    async def _name_again(self) -> None:
        """Where a crash left no `pre-restore` beside older ones, the latest of these is it; where
        there is one, those that it replaces go."""
        whole = [one for one in await self._store.all_snapshots() if RESERVED.fullmatch(one.name)]
        for number, one in reversed(list(enumerate(whole))):
            if not any(other.name == PRE_RESTORE for other in whole if _same(one, other)):
                await self._store.rename_snapshot(one.id, PRE_RESTORE)
                whole[number] = replace(one, name=PRE_RESTORE)
            elif one.name.startswith(OLD):
                await self._store.remove_snapshot(one.id)

    async def _bring(self, box: Box, wanted: Snapshot) -> Box:
        box = await self._rows.change(box, BoxState.RESUMING, step=Waking.RESTORE)
        try:
            host_key = await self._assembly.renew_identity(box)
            await self._assembly.backend.restore_snapshot(box.id, wanted.id)
            box = await self._rows.change(
                box,
                BoxState.SUSPENDED,
                f"restored from snapshot {wanted.name}",
                memory=wanted.memory,
                host_key=host_key,
            )
        except Exception as error:
            try:
                await self._changes.settle(box)
            except BoxdError as left:
                self._timers.unsettled(box, left)
            raise error
        _log.info("box restored from a snapshot", extra={"box": box.id})
        return box


def _same(one: Snapshot, other: Snapshot) -> bool:
    """Whether they are of boxes of one name."""
    return (one.owner, one.ref) == (other.owner, other.ref)


def _free_name(taken: Collection[str], stem: str, first: int) -> str:
    names = (f"{stem}{number}" for number in itertools.count(first))
    return next(name for name in names if name not in taken)
