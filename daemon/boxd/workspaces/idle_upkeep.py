"""Looks after volumes that nobody uses: what was removed leaves the store all the same.

Whoever has a volume open looks after it (`wrkfs.upkeep.background`), but what its trash keeps, and
garbage within its grace, outlasts the last one who closes it. So the daemon looks from outside
which volumes without a session have something to free, and opens these for one round.

Critical section: none; one task, one volume after the other.
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
"""How these sessions are registered in the volume."""
EVERY = 900.0
"""Seconds between two looks at all volumes."""
LONGEST = 120.0
"""Seconds for one volume; what is left waits for the next look."""
LIMITS = Limits(blocks=8 * MIB, dirty=8 * MIB)

_log = logging.getLogger(__name__)


class Volumes(Protocol):
    """Finds volumes; see boxd.workspaces.volumes."""

    async def wasteful(self) -> list[VolumeConfig]:
        """Volumes that nobody has open and that keep what could be freed. Unavailable."""
        ...

    async def empty_trash(self) -> int:
        """Destroys the volumes that have been in the trash for their time. Unavailable."""
        ...


class Keeper:
    """See the module."""

    def __init__(
        self, volumes: Volumes, *, every: float = EVERY, pace: background.Pace = background.PACE
    ) -> None:
        """`every`: seconds between two looks."""
        self._volumes = volumes
        self._every = every
        self._pace = pace
        self._tasks = BackgroundTasks()

    def start(self) -> None:
        """Begins, in the background; it goes on through outages."""
        self._tasks.start(self._repeat(), name="upkeep of unused volumes")

    async def close(self) -> None:
        """Ends it. Idempotent."""
        await self._tasks.close()

    async def look(self) -> int:
        """One look at all volumes; how many it looked after. What fails waits for the next look."""
        try:
            await self._volumes.empty_trash()
            found = await self._volumes.wasteful()
        except BoxdError as error:
            _log.debug("upkeep waits for the database: %s", error)
            return 0
        for config in found:
            try:
                async with asyncio.timeout(LONGEST):
                    await self._look_after(config)
            except (WrkfsError, OSError) as error:  # also TimeoutError
                _log.debug("upkeep of volume %s goes on later: %s", config.volume, error)
        return len(found)

    async def _look_after(self, config: VolumeConfig) -> None:
        fs = await Filesystem.connect(config, kind=KIND, limits=LIMITS)
        try:
            await background.run_round(fs, self._pace)
        finally:
            await fs.close()

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            await self.look()
