"""New boxes from memory: from a prepared box, or from a template."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from boxd.boxes.lifecycle.assembly import Boot
from boxd.boxes.lifecycle.pending_removals import BeingRemoved
from boxd.errors import BoxdError

if TYPE_CHECKING:
    from boxd.boxes.lifecycle.collaborators import Collaborators
    from boxd.boxes.lifecycle.prepared import PreparedBoxes
    from boxd.boxes.lifecycle.templates import Templates
    from boxd.model.box import Box

_log = logging.getLogger(__name__)


class Copies:
    """Runs new boxes as copies. The caller holds the lock of the box. Holds no state of its own."""

    def __init__(
        self, collaborators: Collaborators, templates: Templates, prepared: PreparedBoxes
    ) -> None:
        self._assembly = collaborators.assembly
        self._pending_removals = collaborators.pending_removals
        self.templates = templates
        self.prepared = prepared

    async def claimed(self, box: Box, private_key: bytes) -> bool:
        """Try to make a prepared box the new box; return whether it runs.

        A failed attempt leaves nothing behind.
        """
        try:
            async with self._pending_removals.abortable(box):
                await self._assembly.claim(box, private_key)
                await self._assembly.start(box, Boot.PREPARED)
        except (BoxdError, OSError, ExceptionGroup) as error:
            failure = plain(error)
            if isinstance(failure, BeingRemoved) or not isinstance(failure, BoxdError | OSError):
                raise
            _log.warning("prepared box not claimed: %s", failure, extra={"box": box.id})
            await self._assembly.destroy(box)
            return False
        _log.info("prepared box claimed", extra={"box": box.id})
        return True

    async def copied(self, box: Box, private_key: bytes, template: str) -> bool:
        """Try to run a new box as a copy of a template; return whether it runs.

        A failed attempt leaves nothing behind.
        """
        try:
            async with self._pending_removals.abortable(box):
                await self._assembly.build(box, private_key, snapshot_id=template)
                await self._assembly.start(box, Boot.TEMPLATE)
        except (BoxdError, ExceptionGroup) as error:
            failure = plain(error)
            if isinstance(failure, BeingRemoved) or not isinstance(failure, BoxdError):
                raise
            _log.warning("box not copied: %s; booting it", failure, extra={"box": box.id})
            await self.templates.lost(box)
            await self._assembly.destroy(box)
            return False
        _log.info("box copied from a template", extra={"box": box.id})
        return True


def plain(error: BaseException) -> BaseException:
    """Return the first error of a group, because the steps of a start run concurrently."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
