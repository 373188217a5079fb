"""Open Filesystems of volumes in this process, for HTTP and MCP: one per volume, made at need.

Critical section: connecting and replacing run under a lock per volume, so that two first requests
share one Filesystem.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from boxd.errors import Unavailable
from wrkfs import errors as drive_errors
from wrkfs.fs import Filesystem

if TYPE_CHECKING:
    from boxd.workspaces.attach import Volumes

KIND = "http"
"""How these sessions are registered in the volume."""


class DrivePool:
    """See the module."""

    def __init__(self, volumes: Volumes) -> None:
        self._volumes = volumes
        self._open: dict[tuple[str, str | None], Filesystem] = {}
        self._locks: WeakValueDictionary[tuple[str, str | None], asyncio.Lock] = (
            WeakValueDictionary()
        )

    async def filesystem(self, owner: str, workspace: str | None) -> Filesystem:
        """The volume's Filesystem; the volume is made at first use. Unavailable."""
        place = (owner, workspace)
        async with self._locks.setdefault(place, asyncio.Lock()):
            present = self._open.get(place)
            if present is None:
                config = await self._volumes.ensure(owner, workspace)
                try:
                    present = await Filesystem.connect(config, kind=KIND)
                except drive_errors.StorageError as error:
                    raise Unavailable(f"the drive does not answer: {error}") from error
                self._open[place] = present
            return present

    async def close(self) -> None:
        """Closes all; what is dirty in them is committed first."""
        opened = list(self._open.values())
        self._open.clear()
        await asyncio.gather(*(one.close() for one in opened))
