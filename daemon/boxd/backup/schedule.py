"""Backups that the service makes by itself, every so often, with failures repeated sooner.

Critical section: none; one task, one backup after the other. When the next is due is told by the
noted outcome of the last one, so restarts neither skip nor multiply backups.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from boxd.backup import status
from boxd.errors import BoxdError
from boxd.tasks import BackgroundTasks

if TYPE_CHECKING:
    from boxd.backup.creation import BackupJob

RETRY = timedelta(minutes=10)
"""After a failure, if backups are not made more often anyway."""
LOOK = 30.0
"""Seconds after which the clock on the wall is asked again: it may have been set."""

_log = logging.getLogger(__name__)


class BackupSchedule:
    """See the module."""

    def __init__(self, job: BackupJob, every: timedelta, *, retry: timedelta = RETRY) -> None:
        self._job = job
        self._every = every
        self._retry = min(retry, every)
        self._tasks = BackgroundTasks()

    def start(self) -> None:
        """Begins, in the background; it goes on through failures."""
        self._tasks.start(self._repeat(), name="backups")

    async def close(self) -> None:
        """Ends it; a backup under way is given up and leaves nothing. Idempotent."""
        await self._tasks.close()

    def left(self) -> timedelta:
        """Until the next one is due; zero or less: now."""
        job = self._job
        known = status.load(job.state).get(job.target.url, status.Status())
        now = job.clock.now()
        if known.failed is not None:
            return self._ahead(known.failed + self._retry - now, self._retry)
        if known.succeeded is not None:
            return self._ahead(known.succeeded + self._every - now, self._every)
        return timedelta(0)

    @staticmethod
    def _ahead(left: timedelta, longest: timedelta) -> timedelta:
        """A mark in the future was made before the clock was set back: it tells nothing."""
        return timedelta(0) if left > longest else left

    async def _repeat(self) -> None:
        while True:
            left = self.left().total_seconds()
            if left > 0:
                await asyncio.sleep(min(left, LOOK))
                continue
            try:
                made = await self._job.run()
            except BoxdError as error:
                _log.error("backup to %s failed: %s", self._job.target.url, error)
            else:
                _log.info("backup made: %s", made.told())
            # Also when its outcome could not be noted.
            await asyncio.sleep(min(self._retry.total_seconds(), LOOK))
