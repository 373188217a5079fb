"""Prepared boxes: copies of a template that wait, frozen, for an owner.

A prepared box has no row, no owner and no tunnel, and its agent has not read an identity since the
template was saved. A claim gives it a name and an identity, and thaws it. The agent finds other
files in its run directory, loads them with fresh randomness, and says hello, as in any copy of a
template. So a claim costs the time of a hello, not that of a restore.

The daemon prepares boxes of the kind that was created last. Boxes without a row do not survive the
daemon: it removes them when it stops, and the next start removes the rest.

Critical section: `_preparation` allows one preparation at a time. `_waiting` changes between
awaits.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from boxd.errors import BoxdError
from boxd.secret import random_hex
from boxd.tasks import BackgroundTasks

if TYPE_CHECKING:
    from boxd.boxes.lifecycle.collaborators import Collaborators
    from boxd.boxes.lifecycle.templates import Templates
    from boxd.model.box import Box

QUIET_S = 1.0
"""Seconds after a creation until the daemon prepares another box, so that it does not slow down the
first command in the new one."""
_NAME = "prepared"

_log = logging.getLogger(__name__)


class _Kind(NamedTuple):
    """What a claim cannot change."""

    template: str
    cpus: float
    mem_mb: int
    pids: int
    disk_mb: int
    egress: str


class PreparedBoxes:
    """Prepares boxes, and hands them out. `most`: maximum number of waiting boxes."""

    def __init__(self, collaborators: Collaborators, templates: Templates, *, most: int) -> None:
        self._assembly = collaborators.assembly
        self._timers = collaborators.timers
        self._templates = templates
        self._most = most
        self._waiting: list[tuple[_Kind, Box]] = []
        """The oldest first."""
        self._preparation = asyncio.Lock()
        self._tasks = BackgroundTasks()

    def take(self, box: Box) -> str | None:
        """Return the id of a prepared box that can become this new box, or None."""
        kind = self._kind(box)
        for entry in self._waiting:
            if entry[0] == kind:
                self._waiting.remove(entry)
                return entry[1].id
        return None

    def expect(self, box: Box) -> None:
        """Prepare boxes like this one, which was created just now."""
        if self._most and not len(self._tasks):
            self._tasks.start(self._refill(box), name="prepare boxes")

    async def discard(self, box_id: str, like: Box) -> None:
        """Remove a box that `take` returned and that nobody claims."""
        await self._destroy(replace(like, id=box_id, owner="", drive=False))

    async def close(self) -> None:
        """Remove all waiting boxes."""
        await self._tasks.close()
        while self._waiting:
            await self._destroy(self._waiting.pop()[1])

    def _kind(self, box: Box) -> _Kind | None:
        """Return everything that a claim cannot change; None without a template."""
        template = self._templates.find(box)
        if template is None or box.relay_key:
            return None
        return _Kind(template, box.cpus, box.mem_mb, box.pids, box.disk_mb, box.egress)

    def _is_useless(self, kind: _Kind, current: _Kind | None) -> bool:
        """Return whether boxes of a kind need not wait any longer."""
        return kind != current if current is not None else not self._templates.has(kind.template)

    async def _refill(self, like: Box) -> None:
        await asyncio.sleep(QUIET_S)
        async with self._preparation:
            kind = self._kind(like)
            useless = [one for one in self._waiting if self._is_useless(one[0], kind)]
            self._waiting = [one for one in self._waiting if one not in useless]
            for _, box in useless:
                await self._destroy(box)
            if kind is None:
                return
            try:
                while len(self._waiting) < self._most:
                    self._waiting.append((kind, await self._prepare(like, kind.template)))
            except (BoxdError, OSError, ExceptionGroup) as error:
                _log.info("cannot prepare a box of image %s: %s", like.image, error)

    async def _prepare(self, like: Box, template: str) -> Box:
        private_key, host_key = self._assembly.new_identity()
        box = replace(
            like,
            id=random_hex(16),
            owner="",
            workspace=None,
            name=_NAME,
            host_key=host_key,
            drive=False,
        )
        try:
            await self._assembly.build(box, private_key, snapshot_id=template)
            await self._assembly.backend.resume(box.id, None)
            await self._assembly.backend.freeze(box.id)
        except BaseException:
            await self._destroy(box)
            raise
        _log.info("prepared a box of image %s", box.image, extra={"box": box.id})
        return box

    async def _destroy(self, box: Box) -> None:
        try:
            await self._assembly.destroy(box)
        except BoxdError as error:
            self._timers.retry_removal(box, error)
