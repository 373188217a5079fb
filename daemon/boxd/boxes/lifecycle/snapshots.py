"""Snapshots of boxes: created during one freeze, stored independently of the box, restored into it.

The daemon writes the row of a snapshot first. The row becomes `ready` when the host has the
complete snapshot. The next start removes snapshots that a crash left incomplete, and all snapshots
on the host without a row.

A restore suspends the box, and stores that state as the snapshot `pre-restore` before it changes
anything. A crash before that leaves the box suspended with its memory. After a crash during the
restore, `Sleep.settle` restores that state. An older `pre-restore` has another name until the box
has the restored state. After a crash it is `pre-restore` again, or has been replaced. If the older
one is itself the snapshot to restore, it keeps the other name: `pre-restore-2`.
"""

from __future__ import annotations

import itertools
import logging
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from boxd.boxes.lifecycle.suspend import PRE_RESTORE, Waking
from boxd.errors import BoxdError, Conflict, NotFound, QuotaExceeded, Unsupported
from boxd.model.box import BoxState
from boxd.model.snapshot import snapshot_of
from boxd.names.words import shown
from boxd.secret import random_hex

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from boxd.boxes.lifecycle.changes import Changes
    from boxd.boxes.lifecycle.collaborators import Collaborators
    from boxd.boxes.lifecycle.suspend import Sleep
    from boxd.boxes.limits.tier_limits import Tier
    from boxd.model.box import Box
    from boxd.model.snapshot import Snapshot

OLD = f"{PRE_RESTORE}-old"
RESERVED = re.compile(rf"{PRE_RESTORE}(-old)?(-[0-9]+)?")
"""Names that a restore gives to snapshots."""

_log = logging.getLogger(__name__)


class Snapshots:
    """Takes, finds, restores and removes snapshots. Holds no state; takes the locks it needs."""

    def __init__(
        self,
        collaborators: Collaborators,
        *,
        sleep: Sleep,
        changes: Changes,
        tier_of: Callable[[str], Tier],
    ) -> None:
        self._store = collaborators.store
        self._repository = collaborators.repository
        self._clock = collaborators.clock
        self._assembly = collaborators.assembly
        self._locks = collaborators.locks
        self._pending_removals = collaborators.pending_removals
        self._timers = collaborators.timers
        self._sleep = sleep
        self._changes = changes
        self._tier_of = tier_of

    async def clean(self, keep: Collection[str]) -> None:
        """Remove remains of a crash, at startup. `keep` are ids on the host without a row."""
        for snapshot in await self._store.all_snapshots():
            if not snapshot.ready:
                await self._store.remove_snapshot(snapshot.id)
        await self._name_again()
        valid_ids = {*keep, *(one.id for one in await self._store.all_snapshots())}
        for snapshot_id in await self._assembly.backend.snapshots():
            if snapshot_id not in valid_ids:
                await self.drop(snapshot_id)

    async def find(self, owner: str, workspace: str | None, box_name: str, name: str) -> Snapshot:
        """Return a complete snapshot by name. Raises NotFound."""
        for one in await self._store.snapshots(owner):
            place = (one.workspace, one.box_name, one.name)
            if one.ready and place == (workspace, box_name, name):
                return one
        raise NotFound(f"no snapshot {shown(name)} of box {shown(box_name)}; see: snapshot ls")

    async def create(self, box: Box, name: str | None, *, memory: bool = True) -> Snapshot:
        """Store the current state of a box; `name` None: the first free of s1, s2, ...

        Without `memory`, store only its disk. The daemon freezes a running box meanwhile. Raises
        Conflict naming the users of the box, or if the name is in use; QuotaExceeded, Unsupported
        or NotFound.
        """
        self.check_able()
        async with self._locks.standstills, self._locks.box(box):
            box = await self._changes.steady(box)
            self.check(box)
            return await self._keep(box, name, memory=memory)

    async def remove(self, snapshot: Snapshot) -> None:
        """Remove a snapshot. Boxes that are being created from it are not affected."""
        await self._store.remove_snapshot(snapshot.id)
        await self.drop(snapshot.id)

    async def restore(self, box: Box, name: str) -> Box:
        """Suspend the box and restore one of its snapshots; the box stays suspended.

        The current state becomes the snapshot `pre-restore`, which replaces an older one. Raises
        Conflict naming the users of the box; NotFound or QuotaExceeded.
        """
        self.check_able()
        async with self._locks.standstills, self._locks.box(box):
            box = await self._changes.steady(box)
            snapshot = await self.find(box.owner, box.workspace, box.name, name)
            if (snapshot.box_id, snapshot.image) != (box.id, box.image):
                raise Conflict(
                    f"snapshot {name} is of an older box {box.ref}; create a box from it: "
                    f"snapshot fork {box.ref}@{name} NAME"
                )
            self.check(box)
            older = await self._older(box)
            present = await self._store.snapshots(box.owner)
            try:
                self._tier_of(box.owner).check_snapshots(len(present) - (older is not None))
            except QuotaExceeded as error:
                raise QuotaExceeded(
                    f"{error}. One more: a restore saves the current box as snapshot {PRE_RESTORE}"
                ) from None
            if box.state is BoxState.RUNNING:
                box = await self._sleep.suspend(box)
            await self._keep_before(box, older, snapshot)
            try:
                box = await self._bring(box, snapshot)
            except Exception:
                if older is not None and older.id != snapshot.id:
                    await self._forget(older)
                raise
            if older is not None:
                await self._forget(older)
            return box

    def check_able(self) -> None:
        """Raise Unsupported if the backend has no snapshots."""
        if not self._assembly.backend.capabilities().snapshot:
            raise Unsupported("this host cannot take snapshots of boxes")

    def check(self, box: Box) -> None:
        """Raise Conflict or InUse if the state of the box cannot be copied now."""
        if box.confidential:
            raise Conflict(
                f"box {box.ref} is confidential: its state is never copied; "
                f"connect with {box.relayed}"
            )
        if box.state is BoxState.RUNNING:
            self._sleep.check_able()
            self._sleep.check(box)

    async def take(
        self, box: Box, snapshot_id: str, *, lasting: bool = True, memory: bool = True
    ) -> None:
        """Store disk and memory of a box during one freeze. The box is locked and checked.

        A running box continues afterwards. Without `lasting`, a crash of the host may lose the
        copy. Without `memory`, the method stores only the disk.
        """
        backend = self._assembly.backend
        if box.state is not BoxState.RUNNING:
            await backend.snapshot(box.id, snapshot_id, lasting=lasting, memory=memory)
            return
        await self._assembly.tunnels.quiesce(box.id)
        try:
            await backend.freeze(box.id)
            async with self._pending_removals.abortable(box):
                await backend.snapshot(box.id, snapshot_id, lasting=lasting, memory=memory)
        finally:
            await self._run_again(box)

    async def drop(self, snapshot_id: str) -> None:
        """Remove a snapshot from the host, at the latest at the next start."""
        try:
            await self._assembly.backend.drop_snapshot(snapshot_id)
        except BoxdError as error:
            _log.warning(
                "cannot remove a snapshot from the host: %s; the next start tries again",
                error,
            )

    async def _run_again(self, box: Box) -> None:
        """Thaw a box. Raises nothing; a failure is retried later."""
        try:
            await self._assembly.backend.thaw(box.id)
            await self._assembly.listen(box)
        except (BoxdError, OSError) as error:
            self._timers.unsettled(box, error)

    async def _keep(
        self, box: Box, name: str | None, *, leaving: int = 0, memory: bool = True
    ) -> Snapshot:
        """Write the row of a snapshot and take it. A failure leaves neither.

        `leaving` is the number of existing snapshots that it replaces.
        """
        async with self._locks.sums():
            present = await self._store.snapshots(box.owner)
            self._tier_of(box.owner).check_snapshots(len(present) - leaving)
            names = {one.name for one in present if one.ref == box.ref}
            snapshot = snapshot_of(
                box, random_hex(16), name or _free_name(names, "s", 1), self._clock.now()
            )
            if not memory:
                snapshot = replace(snapshot, memory=False)
            await self._store.add_snapshot(snapshot)
        try:
            await self.take(box, snapshot.id, memory=memory)
            size = await self._assembly.backend.snapshot_bytes(snapshot.id)
            await self._store.finish_snapshot(snapshot.id, size)
        except BaseException:
            await self._forget(snapshot)
            raise
        _log.info("snapshot taken", extra={"box": box.id})
        return replace(snapshot, ready=True, size_bytes=size)

    async def _forget(self, snapshot: Snapshot) -> None:
        """Remove a snapshot after a failure. Raises nothing; the next start retries."""
        try:
            await self._store.remove_snapshot(snapshot.id)
        except BoxdError as error:
            _log.warning(
                "cannot remove the row of a snapshot: %s; the next start of the daemon tries again",
                error,
            )
        await self.drop(snapshot.id)

    async def _older(self, box: Box) -> Snapshot | None:
        try:
            return await self.find(box.owner, box.workspace, box.name, PRE_RESTORE)
        except NotFound:
            return None

    async def _keep_before(self, box: Box, older: Snapshot | None, snapshot: Snapshot) -> None:
        """Store the state of a suspended box as `pre-restore`. An older one gets another name."""
        if older is None:
            await self._keep(box, PRE_RESTORE)
            return
        names = [one.name for one in await self._store.snapshots(box.owner) if _same(one, older)]
        stem, first = (PRE_RESTORE, 2) if older.id == snapshot.id else (OLD, 1)
        await self._store.rename_snapshot(older.id, _free_name(names, f"{stem}-", first))
        try:
            await self._keep(box, PRE_RESTORE, leaving=1)
        except BaseException:
            try:
                await self._store.rename_snapshot(older.id, PRE_RESTORE)
            except BoxdError as error:
                _log.warning(
                    "cannot rename a snapshot back: %s; the next start of the daemon tries again",
                    error,
                )
            raise

    async def _name_again(self) -> None:
        """Repair names after a crash.

        If a box has no `pre-restore`, its latest renamed one gets the name back; otherwise the
        renamed ones are removed.
        """
        whole = [one for one in await self._store.all_snapshots() if RESERVED.fullmatch(one.name)]
        for number, one in reversed(list(enumerate(whole))):
            if not any(other.name == PRE_RESTORE for other in whole if _same(one, other)):
                await self._store.rename_snapshot(one.id, PRE_RESTORE)
                whole[number] = replace(one, name=PRE_RESTORE)
            elif one.name.startswith(OLD):
                await self._store.remove_snapshot(one.id)

    async def _bring(self, box: Box, snapshot: Snapshot) -> Box:
        box = await self._repository.change(box, BoxState.RESUMING, step=Waking.RESTORE)
        try:
            host_key = await self._assembly.renew_identity(box)
            await self._assembly.backend.restore_snapshot(box.id, snapshot.id)
            box = await self._repository.change(
                box,
                BoxState.SUSPENDED,
                f"restored from snapshot {snapshot.name}",
                memory=snapshot.memory,
                host_key=host_key,
            )
        except Exception as error:
            try:
                await self._changes.settle(box)
            except BoxdError as second:
                self._timers.unsettled(box, second)
            raise error
        _log.info("box restored from a snapshot", extra={"box": box.id})
        return box


def _same(one: Snapshot, other: Snapshot) -> bool:
    """Return whether two snapshots are of boxes with the same reference."""
    return (one.owner, one.ref) == (other.owner, other.ref)


def _free_name(names: Collection[str], stem: str, first: int) -> str:
    candidates = (f"{stem}{number}" for number in itertools.count(first))
    return next(name for name in candidates if name not in names)
