"""/wrk in running boxes: requests of their agents, and mounts that were replaced.

The drive of a box changes under the box's lock. The row follows the host.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from boxd.errors import BadRequest, BoxdError, NotFound, Unavailable
from boxd.model.box import BoxState
from boxd.names.words import shown

if TYPE_CHECKING:
    from boxd.boxes.lifecycle.changes import Changes
    from boxd.boxes.lifecycle.collaborators import Collaborators


class BoxDrives:
    """Mounts, unmounts and reattaches the drives of running boxes."""

    def __init__(self, collaborators: Collaborators, changes: Changes) -> None:
        self._store = collaborators.store
        self._repository = collaborators.repository
        self._drives = collaborators.assembly.drives
        self._changes = changes
        self._locks = collaborators.locks

    async def request(self, box_id: str, verb: str) -> dict[str, object]:
        """Answer `mount`, `umount` or `info`, which the agent of a box requests for /wrk.

        Raises NotFound or BadRequest, Unavailable if drives are disabled, and Conflict naming the
        processes that hold the drive.
        """
        box = await self._store.box(box_id)
        if box is None:
            raise NotFound("no such box")
        drives = self._drives
        if drives is None:
            raise Unavailable("the workspace drive is not enabled on this host")
        if verb == "info":
            return await drives.info(box)
        if verb not in ("mount", "umount"):
            raise BadRequest(f"unknown request {shown(verb)}: use mount, umount or info")
        async with self._locks.box(box):
            box = await self._changes.present(box)
            if verb == "mount":
                await drives.prepare(box.owner, box.workspace)
                await drives.attach(box)
                try:
                    await self._repository.note(box, drive=True)
                except BoxdError:
                    await drives.detach(box)
                    raise
            else:
                await drives.detach(box)
                await self._repository.note(box, drive=False)
            return await drives.info(replace(box, drive=verb == "mount"))

    async def reattach(self, owner: str, workspace: str | None) -> None:
        """Attach the new mount of a volume to all running boxes that had the crashed one."""
        drives = self._drives
        if drives is None:
            return
        for box in await self._store.boxes(owner):
            if box.workspace != workspace:
                continue
            async with self._locks.box(box):
                present = await self._store.box(box.id)
                if present and present.drive and present.state is BoxState.RUNNING:
                    await drives.attach(present)
