"""Upkeep of volumes that are not in use, so that removed data leaves the store.

Each open session does upkeep on its volume (`wrkfs.upkeep.background`). But the trash, and garbage
within its grace period, outlast the last session. So the daemon looks for volumes that have no
session and something to free, and opens each of them for one round of upkeep.

Critical section: none; one task handles one volume after another.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from boxd.errors import BoxdError
from boxd.tasks import BackgroundTasks
from wrkfs.config import MIB, Limits
from wrkfs.errors import WrkfsError
from wrkfs.fs import Filesystem
from wrkfs.upkeep import background

if TYPE_CHECKING:
    from wrkfs.config import VolumeConfig

KIND = "upkeep"
"""The kind of these sessions in the volume's list of sessions."""
EVERY = 900.0
"""Seconds between two rounds over all volumes."""
LONGEST = 120.0
"""Seconds for one volume. The rest waits for the next round."""
LIMITS = Limits(blocks=8 * MIB, dirty=8 * MIB)

_log = logging.getLogger(__name__)


class Volumes(Protocol):
    """Finds volumes; `boxd.workspaces.volumes` implements it."""

    async def wasteful(self) -> list[VolumeConfig]:
        """Return the volumes without a session that have something to free. Raises Unavailable."""
        ...

    async def empty_trash(self) -> int:
        """Delete the volumes whose time in the trash is over. Raises Unavailable."""
        ...


class IdleUpkeep:
    """Does upkeep on volumes without a session, in rounds."""

    def __init__(
        self, volumes: Volumes, *, every: float = EVERY, pace: background.Pace = background.PACE
    ) -> None:
        """`every` is the time between two rounds, in seconds."""
        self._volumes = volumes
        self._every = every
        self._pace = pace
        self._tasks = BackgroundTasks()

    def start(self) -> None:
        """Start in the background. Outages do not end it."""
        self._tasks.start(self._repeat(), name="upkeep of unused volumes")

    async def close(self) -> None:
        """Stop. Idempotent."""
        await self._tasks.close()

    async def run_round(self) -> int:
        """Handle all volumes once; return their number.

        A failed volume waits for the next round.
        """
        try:
            await self._volumes.empty_trash()
            configs = await self._volumes.wasteful()
        except BoxdError as error:
            _log.debug("upkeep waits for the database: %s", error)
            return 0
        for config in configs:
            try:
                async with asyncio.timeout(LONGEST):
                    await self._treat(config)
            except (WrkfsError, OSError) as error:  # also TimeoutError
                _log.debug("upkeep of volume %s continues later: %s", config.volume, error)
        return len(configs)

    async def _treat(self, config: VolumeConfig) -> None:
        fs = await Filesystem.connect(config, kind=KIND, limits=LIMITS)
        try:
            await background.run_round(fs, self._pace)
        finally:
            await fs.close()

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            await self.run_round()
