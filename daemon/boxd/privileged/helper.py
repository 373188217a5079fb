"""The process that needs root. It serves one front process at a time.

The first process of the service sends a descriptor of a channel for each front that it starts.
SIGTERM stops the helper. Boxes and mounts keep running.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from boxd.embedded.process import end_processes_of
from boxd.privileged.local import LocalHost
from boxd.privileged.server import Server
from boxd.sandbox.users import FRONT

if TYPE_CHECKING:
    from boxd.config import Config

FRONT_CONNECTED = b"front"
"""The message of the first process with the descriptor of a channel."""

_log = logging.getLogger(__name__)


async def serve(config: Config, control: socket.socket, *, serve: bool) -> int:
    """Serve fronts until SIGTERM, or until `control` is closed; return the exit status 0.

    `serve` false: boxes are only stopped. Raises BadRequest or Unavailable for flags and files that
    cannot be used.
    """
    await _Helper(config, control, serve=serve).run()
    return 0


class _Helper:
    def __init__(self, config: Config, control: socket.socket, *, serve: bool) -> None:
        self._control = control
        self._server: Server | None = None
        self._host = LocalHost(config, self._step, serve=serve)
        self._host.on_mount_restarted(self._mount_restarted)

    async def run(self) -> None:
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        serving = asyncio.create_task(self._serve())
        stopping = asyncio.create_task(stopped.wait())
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            serving.cancel()
            stopping.cancel()
            with suppress(asyncio.CancelledError):
                await serving
        finally:
            await asyncio.to_thread(end_processes_of, self._front_user())
            await self._host.stop(everything=False)

    async def _serve(self) -> None:
        self._control.setblocking(False)
        front = await self._next_front()
        while front is not None:
            # What a front leaves behind is hostile. The new one is still root.
            await asyncio.to_thread(end_processes_of, self._front_user())
            self._server = Server(self._host, front)
            serving = asyncio.create_task(self._server.run())
            try:
                front = await self._next_front()
            finally:
                serving.cancel()
                await asyncio.wait({serving})
                self._server = None

    def _front_user(self) -> int:
        self._host.users.setup()
        return self._host.users.of(FRONT)

    async def _next_front(self) -> socket.socket | None:
        """Wait for the channel of the next front; None if the first process has ended."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._control, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._control)
        message, descriptors, _, _ = socket.recv_fds(
            self._control, len(FRONT_CONNECTED), 1, socket.MSG_CMSG_CLOEXEC
        )
        if message != FRONT_CONNECTED:
            return None
        return socket.socket(fileno=descriptors[0])

    def _step(self, text: str) -> None:
        if self._server is not None:
            self._server.step(text)

    def _mount_restarted(self, volume: str) -> None:
        if self._server is not None:
            self._server.restarted(volume)
