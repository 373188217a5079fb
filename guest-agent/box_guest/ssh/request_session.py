"""A session channel that carries one request of the daemon (`box_guest.shared.requests`).

Protocol adapter only. `BoxSession` guards the callbacks; a guard of its own wraps the task of the
request, so that no exception reaches the connection, which carries every channel of the box.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import asyncssh

from box_guest.shared.requests import (
    BAD,
    MAX_REQUEST,
    Lines,
    MalformedMessage,
    Refused,
    decode_line,
    failure,
    success,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from box_guest.ssh.sessions import Services

    ServerChannel = asyncssh.SSHServerChannel[bytes]

logger = logging.getLogger(__name__)

MAX_INPUT = 128 * 1024
"""Bytes of input that may wait here; more pause the channel."""
CLOSE_LOOK_S = 0.5
"""Seconds between two checks for the close of a paused channel, which does not report it."""


class RequestSession(asyncssh.SSHServerSession[bytes], ABC):
    """Reads the request line and runs `serve` in a task, until it ends or the channel closes."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self._chan: ServerChannel | None = None
        self._lines: Lines | None = Lines(MAX_REQUEST)
        self._input = bytearray()
        self._input_ended = False
        self._changed = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._task: asyncio.Task[None] | None = None
        self._look: asyncio.TimerHandle | None = None

    @abstractmethod
    async def serve(self, request: dict[str, Any]) -> None:
        """Answer the request. Raises Refused and MalformedMessage before the answer."""

    def connection_made(self, chan: ServerChannel) -> None:
        """Note the channel."""
        self._chan = chan

    def session_started(self) -> None:
        """Wait for the request."""

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Take the request line, then input."""
        if self._lines is None:
            self._take(data)
            return
        try:
            split = self._lines.add(data)
        except MalformedMessage as error:
            self._lines = None
            self._begin(self._refuse(Refused(BAD, str(error))))
            return
        if split is not None:
            self._lines = None
            self._take(split[1])
            self._begin(self._run(split[0]))

    def eof_received(self) -> bool:
        """Note the end of input; keep the channel open for the answer."""
        self._input_ended = True
        self._changed.set()
        return True

    def pause_writing(self) -> None:
        """Block `write`."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Unblock `write`."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the task of the request."""
        self._chan = None
        self._stop_looking()
        if self._task is not None:
            self._task.cancel()

    async def answer(self, result: dict[str, Any]) -> None:
        """Send the answer of a request that succeeded."""
        await self.write(success(result))

    async def write(self, data: bytes) -> None:
        """Send bytes; wait while the channel accepts no more."""
        await self._writable.wait()
        if self._chan is not None and not self._chan.is_closing():
            self._chan.write(data)

    async def input(self) -> bytes:
        """Return the next bytes of input; empty at its end."""
        while not self._input:
            if self._input_ended:
                return b""
            self._changed.clear()
            await self._changed.wait()
        data = bytes(self._input)
        self._input.clear()
        if self._look is not None and self._chan is not None:
            self._stop_looking()
            self._chan.resume_reading()
        return data

    def channel(self) -> ServerChannel | None:
        """Return the channel, or None after its end."""
        return self._chan

    def _take(self, data: bytes) -> None:
        self._input += data
        self._changed.set()
        if len(self._input) >= MAX_INPUT and self._look is None and self._chan is not None:
            self._chan.pause_reading()
            self._look_for_close()

    def _look_for_close(self) -> None:
        if self._chan is None:
            return
        if self._chan.is_closing():
            self._chan.abort()
        else:
            self._look = asyncio.get_running_loop().call_later(CLOSE_LOOK_S, self._look_for_close)

    def _stop_looking(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(self._guarded(work))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            logger.exception("a request of the daemon failed")
            if self._chan is not None:
                self._chan.abort()
        else:
            if self._chan is not None and not self._chan.is_closing():
                self._chan.exit(0)

    async def _run(self, line: bytes) -> None:
        try:
            await self.serve(decode_line(line))
        except MalformedMessage as error:
            await self._refuse(Refused(BAD, str(error)))
        except Refused as error:
            await self._refuse(error)

    async def _refuse(self, error: Refused) -> None:
        await self.write(failure(error))
