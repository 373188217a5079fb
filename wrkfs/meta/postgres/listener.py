"""Receives recalls of leases and locks on a connection that only listens.

Rules: functions/1_leases.sql and functions/6_locks.sql.
"""

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
_LOCK_RECALL = "l"
_LOCK_WAKE = "w"
_NUMBER = re.compile("-?[0-9]{1,19}", re.ASCII).fullmatch
_DELEGATED = re.compile("w[0-9]{1,19}", re.ASCII).fullmatch


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
        self.on_delegation_recall: Callable[[list[Ino]], None] = lambda _: None
        """Called with directories whose delegations other sessions recall."""
        self.on_loss: Callable[[], None] = lambda: None
        """Called when the listener may have missed recalls."""
        self.on_lock_recall: Callable[[list[Ino]], None] = lambda _: None
        """Called with files whose locks another session requests from this one."""
        self.on_lock_wake: Callable[[list[Ino]], None] = lambda _: None
        """Called with files whose locks may have become free."""
        self.on_lock_silence: Callable[[], None] = lambda: None
        """Called as `on_loss` is, for the locks."""
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
                    self.on_lock_silence()
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
        # directory, or a delegation.
        topic, colon, inos = str(payload).rpartition(":")
        parts = inos.split(",")
        numbers = [Ino(int(part)) for part in parts if _NUMBER(part)]
        if topic == _LOCK_RECALL:
            self.on_lock_recall(numbers)
        elif topic == _LOCK_WAKE:
            self.on_lock_wake(numbers)
        elif not colon:
            if numbers:
                self.on_recall(numbers)
            delegated = [Ino(int(part[1:])) for part in parts if _DELEGATED(part)]
            if delegated:
                self.on_delegation_recall(delegated)
