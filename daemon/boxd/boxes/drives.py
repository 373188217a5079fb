"""/wrk in boxes that run already: what their agents ask for, and mounts that were replaced.

A box's drive changes under the box's lock; the row that remembers it follows the host.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from boxd.errors import BadRequest, BoxdError, NotFound, Unavailable
from boxd.model.box import BoxState
from boxd.names.words import shown

if TYPE_CHECKING:
    from boxd.boxes.changes import Changes
    from boxd.boxes.parts import Parts


class BoxDrives:
    """See the module."""

    def __init__(self, parts: Parts, changes: Changes) -> None:
        self._store = parts.store
        self._rows = parts.rows
        self._drives = parts.assembly.drives
        self._changes = changes
        self._locks = parts.locks

    async def request(self, box_id: str, verb: str) -> dict[str, object]:
        """`mount`, `umount` or `info` of /wrk, asked for by the agent of a box.

        NotFound, BadRequest; Unavailable without drives; Conflict naming who holds the drive.
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
                    await self._rows.note(box, drive=True)
                except BoxdError:
                    await drives.detach(box)
                    raise
            else:
                await drives.detach(box)
                await self._rows.note(box, drive=False)
            return await drives.info(replace(box, drive=verb == "mount"))

    async def reattach(self, owner: str, workspace: str | None) -> None:
        """Puts a new mount of a volume into all running boxes of it; a crashed one was there."""
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
