"""Receives recalls of leases on a connection that only listens. Rules: functions/1_leases.sql."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from typing import TYPE_CHECKING

import asyncpg

from wrkfs.types import Ino

if TYPE_CHECKING:
    from collections.abc import Callable

    from wrkfs.meta.postgres.links import Links

log = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds between two attempts to listen again."""
PROBE = 2.0
"""Seconds between two probes of the connection."""
PROBE_TIMEOUT = 1.5
"""Timeout of a probe in seconds. `PROBE` and this together are shorter than a lease."""
_NUMBER = re.compile("-?[0-9]{1,19}", re.ASCII).fullmatch


class Listener:
    """Listens on a channel with a random name until it is closed.

    Critical section: `ready` is true only from the answer to LISTEN until the connection is lost.
    The step that makes it false also calls `on_loss`.
    """

    def __init__(self, links: Links) -> None:
        self.channel = "w" + secrets.token_hex(16)
        self.ready = False
        self.on_recall: Callable[[list[Ino]], None] = lambda _: None
        """Called with recalled directories. A negative number is an inode whose access time another
        session has moved."""
        self.on_loss: Callable[[], None] = lambda: None
        """Called when the listener may have missed recalls."""
        self._links = links
        self._task: asyncio.Task[None] | None = None
        self._started = asyncio.Event()

    async def start(self) -> None:
        """Start listening. Return after the first attempt, and raise nothing.

        The listener reconnects by itself.
        """
        self._task = asyncio.create_task(self._run(), name="wrkfs listener")
        await self._started.wait()

    async def close(self) -> None:
        """Stop listening. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self._listen()
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                log.debug("listening ended: %s", error)
            except asyncpg.InternalClientError:  # the server's farewell
                log.debug("listening ended")
            finally:
                if self.ready:
                    self.ready = False
                    self.on_loss()
                self._started.set()
            await asyncio.sleep(PAUSE)

    async def _listen(self) -> None:
        connection = await self._links.open_dedicated()
        ended = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: ended.set())
            await connection.add_listener(self.channel, self._notified)
            self.ready = True
            self._started.set()
            while not ended.is_set():
                try:
                    async with asyncio.timeout(PROBE):
                        await ended.wait()
                except TimeoutError:
                    async with asyncio.timeout(PROBE_TIMEOUT):
                        await connection.execute("SELECT 1")
        finally:
            connection.terminate()

    def _notified(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        # Any client that knows the channel's name can notify it. A wrong number only costs a cached
        # directory.
        parts = str(payload).split(",")
        self.on_recall([Ino(int(part)) for part in parts if _NUMBER(part)])
