"""Scheduled backups of the service. A failed backup is repeated sooner.

Critical section: none; one task makes one backup after another. The recorded outcome of the last
backup decides when the next is due, so restarts neither skip nor repeat backups.
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
"""Time until the service repeats a failed backup, if the period is not shorter."""
LOOK = 30.0
"""Seconds after which the wall clock is read again, because it may have been set."""

_log = logging.getLogger(__name__)


class BackupSchedule:
    """Makes the backups of `job` with the period `every`."""

    def __init__(self, job: BackupJob, every: timedelta, *, retry: timedelta = RETRY) -> None:
        self._job = job
        self._every = every
        self._retry = min(retry, every)
        self._tasks = BackgroundTasks()

    def start(self) -> None:
        """Start in the background. Failures do not end it."""
        self._tasks.start(self._repeat(), name="backups")

    async def close(self) -> None:
        """Stop. A running backup is abandoned and leaves nothing. Idempotent."""
        await self._tasks.close()

    def time_left(self) -> timedelta:
        """Return the time until the next backup is due; zero or less means now."""
        job = self._job
        last = status.load(job.state).get(job.target.url, status.Status())
        now = job.clock.now()
        if last.failed is not None:
            return self._bounded(last.failed + self._retry - now, self._retry)
        if last.succeeded is not None:
            return self._bounded(last.succeeded + self._every - now, self._every)
        return timedelta(0)

    @staticmethod
    def _bounded(delay: timedelta, longest: timedelta) -> timedelta:
        # A longer delay means that the last backup is dated in the future: the clock was set back.
        return timedelta(0) if delay > longest else delay

    async def _repeat(self) -> None:
        while True:
            delay = self.time_left().total_seconds()
            if delay > 0:
                await asyncio.sleep(min(delay, LOOK))
                continue
            try:
                backup = await self._job.run()
            except BoxdError as error:
                _log.error("backup to %s failed: %s", self._job.target.url, error)
            else:
                _log.info("backup made: %s", backup.summary())
            # If the outcome cannot be recorded, this sleep prevents an endless loop of backups.
            await asyncio.sleep(min(self._retry.total_seconds(), LOOK))
