"""Boxes go to sleep with their memory, and wake from it.

Each step is numbered and stands in the box's row before it is done, so that `settle` can bring a
box to a steady state whatever ended the daemon. What decides there are two facts of the host:
whether the box lives, and whether a complete memory of it is published.

=======================  ===========================  =========================================
suspension, step         what is done                 if it fails, or the daemon dies
=======================  ===========================  =========================================
1 the agent is told      it closes its tunnel         the box runs on
2 frozen                 nothing in it moves          the same, thawed
3 saved                  its memory, and published    the same; a half memory is dropped
4 stopped (row: memory)  processes end, all released  goes on later: it has not run since
=======================  ===========================  =========================================

Resuming: 1 the tunnel listens and the drive is there; 2 the backend brings the memory back, which
uses it up; 3 the agent says hello. What fails before 2 leaves the box asleep with its memory. If
the memory is lost, the box starts from its disk, and its row says why.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from enum import IntEnum
from typing import TYPE_CHECKING

from boxd.backends.interface import BackendBox
from boxd.boxes.dooms import Doomed
from boxd.errors import BoxdError, Conflict, DiskFull, MemoryLost, Unavailable, Unsupported
from boxd.model.box import BoxState

if TYPE_CHECKING:
    from boxd.boxes.parts import Parts
    from boxd.model.box import Box

PRE_RESTORE = "pre-restore"
"""Name of the snapshot that is what a box was before another one was restored into it."""
FROM_DISK = "starts again from its disk"
DIED = f"its processes ended; {FROM_DISK}"

_log = logging.getLogger(__name__)


class Step(IntEnum):
    """Of a suspension; `Waking` has those of a resume."""

    TELL = 1
    FREEZE = 2
    SAVE = 3
    STOP = 4


class Waking(IntEnum):
    """See the module."""

    PREPARE = 1
    BRING_BACK = 2
    HELLO = 3
    RESTORE = 4
    """A snapshot is brought into a sleeping box (`boxes.snapshots`)."""


class InUse(Conflict):
    """Somebody uses the box, so that it is not put to sleep."""


class Sleep:
    """See the module. Holds no state of its own. All of it is called under the box's lock."""

    def __init__(self, parts: Parts) -> None:
        self._store = parts.store
        self._rows = parts.rows
        self._assembly = parts.assembly
        self._attachments = parts.attachments
        self._activity = parts.activity
        self._timers = parts.timers
        self._dooms = parts.dooms

    def check_able(self) -> None:
        """Unsupported where boxes cannot be suspended."""
        can = self._assembly.backend.capabilities()
        if not can.suspend:
            raise Unsupported(f"this host cannot suspend boxes: {can.why_no_suspend}")

    def check(self, box: Box) -> None:
        """Refuses a box that is in use, naming by what, or whose memory must not be written."""
        if box.confidential:
            raise Conflict(
                f"box {box.ref} is confidential: its memory is never written to a disk; "
                f"it is reached by {box.relayed}"
            )
        self._check_drive(box)
        holders = ", ".join(
            f"{count} {why}" for why, count in self._attachments.why(box.id).items()
        )
        if holders:
            raise InUse(f"box {box.ref} is in use ({holders}): end that first, or remove the box")

    def _check_drive(self, box: Box) -> None:
        """Refuses a box whose own process serves its /wrk: that cannot be stored."""
        if box.drive and not self._assembly.backend.capabilities().attaches_drives:
            raise Conflict(
                f"box {box.ref} mounts its drive itself, and such a mount cannot be stored; first "
                "run in the box: box-guest workspace umount"
            )

    async def suspend(self, box: Box, *, unasked: bool = False, detail: str = "") -> Box:
        """From `running` to `suspended` with its memory; `check` comes before.

        `unasked`: InUse if the agent tells of a shell. Conflict when the box cannot be suspended:
        it runs on, and its row says why.
        """
        self._check_drive(box)
        before = box
        box = await self._rows.change(box, BoxState.SUSPENDING, step=Step.TELL)
        try:
            shells = await self._assembly.tunnels.quiesce(box.id)
            if unasked and shells:
                self._activity.report(box.id, shells)
                raise InUse(f"box {box.ref} is in use ({shells} detached shells)")
            box = await self._rows.note(box, step=Step.FREEZE)
            await self._assembly.backend.freeze(box.id)
            box = await self._rows.note(box, step=Step.SAVE)
            async with self._dooms.breakable(box):
                await self._assembly.backend.save_memory(box.id)
            box = await self._rows.note(box, step=Step.STOP, memory=True)
        except BaseException as error:
            failure = f"could not be suspended: {str(error) or 'it was broken off'}"
            plain = isinstance(error, InUse | Doomed)
            await self._run_on(box, before, "" if plain else failure)
            if plain or not isinstance(error, BoxdError | OSError):
                raise
            kind = DiskFull if isinstance(error, DiskFull) else Conflict
            raise kind(f"box {box.ref} {failure}") from error
        return await self._fall_asleep(box, detail)

    async def _fall_asleep(self, box: Box, detail: str) -> Box:
        """The last step: what runs on now would be lost, so that it is never undone."""
        try:
            await self._assembly.stop(box)
            self._activity.asleep(box.id)
            box = await self._rows.change(box, BoxState.SUSPENDED, detail, memory=True)
        except Exception as error:
            self._timers.unsettled(box, error)
            raise
        _log.info("box suspended", extra={"box": box.id})
        return box

    async def _run_on(self, box: Box, before: Box, detail: str) -> None:
        """After a suspension that failed. Nothing is raised: what fails is done later."""
        try:
            if box.step >= Step.FREEZE:
                await self._assembly.backend.thaw(box.id)
            await self._assembly.listen(box)
            await self._rows.change(box, BoxState.RUNNING, detail, memory=False, since=before.since)
        except (BoxdError, OSError) as error:
            self._timers.unsettled(box, error)

    async def settle(self, box: Box, found: BackendBox | None, *, died: str = DIED) -> Box:
        """Brings a box to `running` or `suspended` as the host has it; see the table above.

        `found` None: the host does not know the box. `died` is told of a box that was running.
        """
        if box.state is BoxState.RESUMING and box.step == Waking.RESTORE:
            return await self._undo_restore(box)
        found = found or BackendBox(box.id, running=False)
        keep = found.memory and (found.frozen or box.state is not BoxState.RUNNING)
        if found.running and keep and (found.frozen or box.state is not BoxState.RESUMING):
            # Its memory is complete, and nothing of it has run since.
            await self._assembly.stop(box)
            found = replace(found, running=False, frozen=False)
        elif found.running and (found.frozen or found.memory):
            await self._assembly.backend.thaw(box.id)
        if found.running:
            if box.state is not BoxState.RUNNING:
                box = await self._rows.change(box, BoxState.RUNNING, box.detail, memory=False)
            return box
        if found.memory and not keep:
            await self._assembly.backend.discard_memory(box.id)
        self._activity.asleep(box.id)
        if box.state is BoxState.RUNNING:
            box = await self._rows.change(box, BoxState.SUSPENDING)
        return await self._rows.change(
            box, BoxState.SUSPENDED, box.detail if keep else died, memory=keep
        )

    async def _undo_restore(self, box: Box) -> Box:
        """A snapshot was being brought into the box: it becomes what it was before."""
        for one in await self._store.snapshots(box.owner):
            if one.ready and (one.box_id, one.name) == (box.id, PRE_RESTORE):
                host_key = await self._assembly.renew_identity(box)
                await self._assembly.backend.restore_snapshot(box.id, one.id)
                detail = "was not restored from a snapshot; it is as before"
                return await self._rows.change(
                    box, BoxState.SUSPENDED, detail, memory=one.memory, host_key=host_key
                )
        detail = "was being restored from a snapshot, and what it was before is gone"
        return await self._rows.change(box, BoxState.SUSPENDED, detail, memory=False)

    async def check_asleep(self, box: Box, found: BackendBox | None) -> Box:
        """A box whose row says that it sleeps: what lives of it ends, memory is as the row says."""
        if found is not None and found.running:
            await self._assembly.stop(box)
        has = found is not None and found.memory
        if has and not box.memory:
            await self._assembly.backend.discard_memory(box.id)
        elif box.memory and not has:
            detail = f"its memory is gone from the host; {FROM_DISK}"
            box = await self._rows.note(box, memory=False)
            _log.warning(detail, extra={"box": box.id})
        return box

    async def revive(self, box: Box) -> str:
        """Has a `resuming` or new box run: from its memory, else from its disk.

        Returns why not from the memory that it had, "" if from it or if it had none. What it raises
        leaves the box to `rest`; Doomed when somebody removes the box meanwhile.
        """
        async with self._dooms.breakable(box):
            return await self._revive(box)

    async def _revive(self, box: Box) -> str:
        if not box.memory:
            await self._assembly.start(box)
            return ""
        try:
            await self._bring_back(box)
        except MemoryLost as error:
            _log.warning("box starts from its disk: %s", error, extra={"box": box.id})
            await self._assembly.stop(box)
            await self._rows.note(box, memory=False)
            await self._assembly.start(box)
            return f"started from its disk: {error}"
        return ""

    async def _bring_back(self, box: Box) -> None:
        drive = await self._assembly.prepare_resume(box)
        await self._rows.note(box, step=Waking.BRING_BACK)
        await self._assembly.backend.resume(box.id, drive)
        await self._rows.note(box, step=Waking.HELLO)
        try:
            await self._assembly.resumed(box)
        except Unavailable as error:
            raise MemoryLost(
                f"it did not answer after its memory was brought back: {error}"
            ) from error

    async def rest(self, box: Box, detail: str) -> None:
        """After a start that failed: asleep, with its memory if that was not used.

        Also without the database; then the row is settled later.
        """
        try:
            await self._assembly.stop(box)
            found = await self._assembly.look(box.id)
            memory = box.memory and found is not None and found.memory
            await self._rows.change(box, BoxState.SUSPENDED, detail, memory=memory)
        except BoxdError as error:
            self._timers.unsettled(box, error)
