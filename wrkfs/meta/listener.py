"""Hears that leases are recalled: a connection that only listens. Rules: functions/1_leases.sql."""

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

    from wrkfs.meta.links import Links

log = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds between two tries to listen again."""
PROBE = 2.0
"""Seconds between two looks whether the connection still carries anything."""
PROBE_TIMEOUT = 1.5
"""Seconds for the answer to such a look; with `PROBE` below what a lease lasts."""
_NUMBER = re.compile("-?[0-9]{1,19}", re.ASCII).fullmatch


class Listener:
    """Listens on a channel of a random name until closed.

    Critical section: `ready` is true only between a LISTEN that was answered and the loss of its
    connection; `on_loss` is called in the step that makes it false.
    """

    def __init__(self, links: Links) -> None:
        self.channel = "w" + secrets.token_hex(16)
        self.ready = False
        self.on_recall: Callable[[list[Ino]], None] = lambda _: None
        """Told the directories whose leases somebody waits for, and, negative, the inodes whose
        access times somebody has moved."""
        self.on_loss: Callable[[], None] = lambda: None
        """Recalls may have been missed."""
        self._links = links
        self._task: asyncio.Task[None] | None = None
        self._started = asyncio.Event()

    async def start(self) -> None:
        """Returns when it listens; goes on by itself from then on. Raises nothing."""
        self._task = asyncio.create_task(self._run(), name="wrkfs listener")
        await self._started.wait()

    async def close(self) -> None:
        """Ends it. Idempotent."""
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
        connection = await self._links.apart()
        ended = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: ended.set())
            await connection.add_listener(self.channel, self._heard)
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

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        # Who knows the channel's name may send anything: a wrong number only costs what is kept.
        parts = str(payload).split(",")
        self.on_recall([Ino(int(part)) for part in parts if _NUMBER(part)])
