"""Suspending boxes with their memory, and resuming them.

Each step is numbered, and the number is stored in the box's row before the step runs. So `settle`
can bring a box to a steady state wherever the daemon died. Two facts of the host decide the result:
whether the box runs, and whether a complete memory image of it is published.

=======================  ===========================  =========================================
suspension, step         action                       after a failure or a crash of the daemon
=======================  ===========================  =========================================
1 quiesce the agent      the agent closes its tunnel  the box keeps running
2 freeze                 no process of it runs        the box is thawed and keeps running
3 save                   memory written, published    the same; an incomplete image is deleted
4 stop (row: memory)     processes end, all released  completed later: nothing has run since
=======================  ===========================  =========================================

A resume has three steps: 1 the daemon listens for the tunnel and mounts the drive; 2 the backend
restores the memory, which consumes the image; 3 the agent says hello. A failure before step 2
leaves the box suspended with its memory. If the memory is lost, the box starts from its disk, and
its row says why.

This file runs the steps. Other files decide whether a suspension starts and whether it can succeed.
To find out why a box was not suspended, read them in this order:

=================================  ================================================================
file                               question
=================================  ================================================================
boxes/timing/schedule.py           Is it due? Idle time, grace, pins, auto-suspend.
boxes/presence/attachments.py      Does a client hold the box awake?
boxes/presence/activity.py         Does a detached shell hold it? Has a failure caused a pause?
boxes/lifecycle/due_actions.py     What happened when it was due?
`Sleep.check` in this file         Does the box allow it? Confidential boxes and own drive mounts.
backends/checkpoint/obstacles.py   Which process or file can CRIU not save?
=================================  ================================================================
"""

from __future__ import annotations

import logging
from dataclasses import replace
from enum import IntEnum
from typing import TYPE_CHECKING

from boxd.backends.interface import BackendBox
from boxd.boxes.lifecycle.pending_removals import BeingRemoved
from boxd.boxes.presence.oom import OomCounter
from boxd.errors import BoxdError, Conflict, DiskFull, MemoryLost, Unavailable, Unsupported
from boxd.model.box import BoxState
from boxd.observation import Work, observed

if TYPE_CHECKING:
    from boxd.boxes.lifecycle.collaborators import Collaborators
    from boxd.model.box import Box

PRE_RESTORE = "pre-restore"
"""Name of the snapshot that stores the state of a box before a restore."""
FROM_DISK = "starts again from its disk"
DIED = f"its processes ended; {FROM_DISK}"
_CONTAINERS = "its flavor allows containers inside it, whose memory cannot be saved"

_log = logging.getLogger(__name__)


class Step(IntEnum):
    """Steps of a suspension; `Waking` has those of a resume."""

    QUIESCE = 1
    FREEZE = 2
    SAVE = 3
    STOP = 4


class Waking(IntEnum):
    """Steps of a resume, and the step of a restore."""

    PREPARE = 1
    RESTORE_MEMORY = 2
    HELLO = 3
    RESTORE = 4
    """The backend restores a snapshot into a suspended box (`lifecycle.snapshots`)."""


class InUse(Conflict):
    """The box is in use, so the daemon does not suspend it."""


class Sleep:
    """Suspends and resumes boxes. Holds no state; callers hold the box's lock."""

    def __init__(self, collaborators: Collaborators) -> None:
        self.observer = collaborators.observer
        self._store = collaborators.store
        self._repository = collaborators.repository
        self._assembly = collaborators.assembly
        self._attachments = collaborators.attachments
        self._activity = collaborators.activity
        self._timers = collaborators.timers
        self._pending_removals = collaborators.pending_removals
        self._oom = collaborators.oom

    def check_able(self) -> None:
        """Raise Unsupported if the backend cannot suspend boxes."""
        can = self._assembly.backend.capabilities()
        if not can.suspend:
            raise Unsupported(f"this host cannot suspend boxes: {can.why_no_suspend}")

    def why_never(self, box: Box) -> str:
        """Return why the daemon never suspends this box, for its owner; empty if it can."""
        can = self._assembly.backend.capabilities()
        if not can.suspend:
            return can.why_no_suspend
        if box.confidential:
            return "it is confidential: its memory is never written to a disk"
        return _CONTAINERS if box.containers else ""

    def check(self, box: Box) -> None:
        """Check that the box may be suspended now.

        Raises InUse naming the users of the box, Unsupported if it is confidential or may run
        containers, and Conflict if it mounts its drive itself.
        """
        if box.confidential:
            raise Unsupported(
                f"suspend is not supported for box {box.ref}, which is confidential: its memory is "
                f"never written to a disk. Use it by {box.relayed}, or remove it"
            )
        if box.containers:
            raise Unsupported(
                f"suspend is not supported for box {box.ref}: {_CONTAINERS}. It stays awake; "
                f"remove it when you do not need it: rm {box.ref}"
            )
        self._check_drive(box)
        holders = ", ".join(
            f"{count} {why}" for why, count in self._attachments.why(box.id).items()
        )
        if holders:
            raise InUse(f"box {box.ref} is in use ({holders}): end that first, or remove the box")

    def _check_drive(self, box: Box) -> None:
        """Raise Conflict if a process of the box serves its /wrk.

        Such a mount cannot be checkpointed.
        """
        if box.drive and not self._assembly.backend.capabilities().attaches_drives:
            raise Conflict(
                f"box {box.ref} mounts its drive itself, and such a mount cannot be stored; first "
                "run in the box: box-guest workspace umount"
            )

    @observed(Work.SUSPEND)
    async def suspend(self, box: Box, *, unasked: bool = False, detail: str = "") -> Box:
        """Change a running box to `suspended`, with its memory. Callers run `check` first.

        `unasked`: the daemon suspends by itself; raises InUse if the agent reports a detached
        shell or a background command. Raises Conflict if the box cannot be suspended; the box then
        keeps running, and its row says why.
        """
        self._check_drive(box)
        before = box
        box = await self._repository.change(box, BoxState.SUSPENDING, step=Step.QUIESCE)
        try:
            presence = await self._assembly.tunnels.quiesce(box.id)
            if unasked and presence is not None and any(presence):
                self._activity.report(box.id, presence)
                raise InUse(
                    f"box {box.ref} is in use ({presence.shells} detached shells,"
                    f" {presence.commands} background commands)"
                )
            box = await self._repository.note(box, step=Step.FREEZE)
            await self._assembly.backend.freeze(box.id)
            await self._oom.keep(OomCounter(self._assembly.backend, box))
            box = await self._repository.note(box, step=Step.SAVE)
            async with self._pending_removals.abortable(box):
                await self._assembly.backend.save_memory(box.id)
            box = await self._repository.note(box, step=Step.STOP, memory=True)
        except BaseException as error:
            failure = f"could not be suspended: {str(error) or 'it was cancelled'}"
            expected = isinstance(error, InUse | BeingRemoved)
            await self._keep_running(box, before, "" if expected else failure)
            if expected or not isinstance(error, BoxdError | OSError):
                raise
            kind = DiskFull if isinstance(error, DiskFull) else Conflict
            raise kind(f"box {box.ref} {failure}") from error
        return await self._fall_asleep(box, detail)

    async def _fall_asleep(self, box: Box, detail: str) -> Box:
        """Run the last step.

        The daemon never undoes it: the saved memory would not contain what runs afterwards.
        """
        try:
            await self._assembly.stop(box)
            self._oom.begin_anew(box.id)
            self._activity.asleep(box.id)
            box = await self._repository.change(box, BoxState.SUSPENDED, detail, memory=True)
        except Exception as error:
            self._timers.unsettled(box, error)
            raise
        _log.info("box suspended", extra={"box": box.id})
        return box

    async def _keep_running(self, box: Box, before: Box, detail: str) -> None:
        """Thaw the box after a failed suspension. Raises nothing; a failure is retried later."""
        try:
            if box.step >= Step.FREEZE:
                await self._assembly.backend.thaw(box.id)
            await self._assembly.listen(box)
            await self._repository.change(
                box, BoxState.RUNNING, detail, memory=False, since=before.since
            )
        except (BoxdError, OSError) as error:
            self._timers.unsettled(box, error)

    async def settle(self, box: Box, host_box: BackendBox | None, *, died: str = DIED) -> Box:
        """Bring a box to `running` or `suspended`, depending on the host; see the table above.

        `host_box` is None if the host does not know the box. `died` is the detail for a box that
        was running and whose processes ended.
        """
        if box.state is BoxState.RESUMING and box.step == Waking.RESTORE:
            return await self._undo_restore(box)
        host_box = host_box or BackendBox(box.id, running=False)
        keep = host_box.memory and (host_box.frozen or box.state is not BoxState.RUNNING)
        if host_box.running and keep and (host_box.frozen or box.state is not BoxState.RESUMING):
            # Its memory image is complete, and no process has run since.
            await self._assembly.stop(box)
            host_box = replace(host_box, running=False, frozen=False)
        elif host_box.running and (host_box.frozen or host_box.memory):
            await self._assembly.backend.thaw(box.id)
        if host_box.running:
            if box.state is not BoxState.RUNNING:
                box = await self._repository.change(box, BoxState.RUNNING, box.detail, memory=False)
            return box
        if host_box.memory and not keep:
            await self._assembly.backend.discard_memory(box.id)
        self._activity.asleep(box.id)
        if box.state is BoxState.RUNNING:
            box = await self._repository.change(box, BoxState.SUSPENDING)
        return await self._repository.change(
            box, BoxState.SUSPENDED, box.detail if keep else died, memory=keep
        )

    async def _undo_restore(self, box: Box) -> Box:
        """Bring a box back to its state before an interrupted restore."""
        for snapshot in await self._store.snapshots(box.owner):
            if snapshot.ready and (snapshot.box_id, snapshot.name) == (box.id, PRE_RESTORE):
                host_key = await self._assembly.renew_identity(box)
                await self._assembly.backend.restore_snapshot(box.id, snapshot.id)
                detail = "was not restored from a snapshot; it is unchanged"
                return await self._repository.change(
                    box, BoxState.SUSPENDED, detail, memory=snapshot.memory, host_key=host_key
                )
        detail = "was being restored from a snapshot, and its earlier state is lost"
        return await self._repository.change(box, BoxState.SUSPENDED, detail, memory=False)

    async def check_asleep(self, box: Box, host_box: BackendBox | None) -> Box:
        """Correct the host for a suspended box: no process runs; the memory matches its row."""
        if host_box is not None and host_box.running:
            await self._assembly.stop(box)
        has = host_box is not None and host_box.memory
        if has and not box.memory:
            await self._assembly.backend.discard_memory(box.id)
        elif box.memory and not has:
            detail = f"its memory is no longer on the host; {FROM_DISK}"
            box = await self._repository.note(box, memory=False)
            _log.warning(detail, extra={"box": box.id})
        return box

    async def revive(self, box: Box) -> str:
        """Run a `resuming` or new box from its memory, or from its disk if it has none.

        Returns why the box did not resume from its memory, or "" if it did or had none. After an
        error the caller calls `rest`. Raises BeingRemoved if a removal starts meanwhile.
        """
        async with self._pending_removals.abortable(box):
            return await self._revive(box)

    async def _revive(self, box: Box) -> str:
        if not box.memory:
            await self._assembly.start(box)
            return ""
        try:
            await self._restore_memory(box)
        except MemoryLost as error:
            _log.warning("box starts from its disk: %s", error, extra={"box": box.id})
            await self._assembly.stop(box)
            await self._repository.note(box, memory=False)
            await self._assembly.start(box)
            return f"started from its disk: {error}"
        return ""

    async def _restore_memory(self, box: Box) -> None:
        drive = await self._assembly.prepare_resume(box)
        await self._repository.note(box, step=Waking.RESTORE_MEMORY)
        await self._assembly.backend.resume(box.id, drive)
        await self._repository.note(box, step=Waking.HELLO)
        try:
            await self._assembly.resumed(box)
        except Unavailable as error:
            raise MemoryLost(f"it did not answer after its memory was restored: {error}") from error

    async def rest(self, box: Box, detail: str) -> None:
        """Change a box to `suspended` after a failed start, with its memory if that is unused.

        Also works without the database; the row is then settled later.
        """
        try:
            await self._assembly.stop(box)
            host_box = await self._assembly.look(box.id)
            memory = box.memory and host_box is not None and host_box.memory
            await self._repository.change(box, BoxState.SUSPENDED, detail, memory=memory)
        except BoxdError as error:
            self._timers.unsettled(box, error)
