"""Background tasks of the daemon. Each task belongs to an object that ends it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class BackgroundTasks:
    """The background tasks of one object, for example of a service or a connection.

    The object keeps a reference to each running task, so that asyncio cannot drop it.
    """

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """The number of running tasks."""
        return len(self._running)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        """The running tasks at this moment."""
        return iter(list(self._running))

    def start(
        self, work: Coroutine[Any, Any, _T], *, name: str, awaited: bool = False
    ) -> asyncio.Task[_T]:
        """Start `work` as a task and return the task.

        An exception of the task is a bug, and is logged at once. For an `awaited` task, the starter
        handles the result instead.
        """
        task = asyncio.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        if not awaited:
            task.add_done_callback(_log_failure)
        return task

    def cancel(self) -> None:
        """Request the cancellation of all tasks, without waiting."""
        for task in self:
            task.cancel()

    async def join(self) -> None:
        """Wait until no task is running. Tasks that start meanwhile count too."""
        while self._running:
            await asyncio.gather(*self._running, return_exceptions=True)

    async def close(self) -> None:
        """Cancel all tasks and wait for their end. Idempotent."""
        self.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


def _log_failure(task: asyncio.Task[Any]) -> None:
    error = None if task.cancelled() else task.exception()
    if isinstance(error, Exception):  # any other BaseException ends the process
        _log.error(
            "%s: the task failed because of a bug; restart the service",
            task.get_name(),
            exc_info=error,
        )
