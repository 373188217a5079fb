"""Two local endpoints in the box through which the mount reaches its stores.

The metadata database has a Unix socket, named as PostgreSQL names it. The object store has a
loopback port, because its clients do not support Unix sockets. Connections are forwarded through
the tunnel.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from box_guest import protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path
    from typing import Any

    from box_guest.ssh.forward import DriveGate

PG_SOCKET = ".s.PGSQL.5432"
"""File name of PostgreSQL's socket for port 5432."""
AT_ONCE = 48
"""Maximum number of concurrent connections to each store; further ones wait."""
PACE_S = 0.03
"""Seconds between two connections: the daemon treats more than twice this rate as misbehaviour."""


class StoreEndpoints:
    """Accepts connections for both stores and forwards them.

    `_accepting` changes only in `open` and `close`, which do not interleave.
    """

    def __init__(
        self,
        gate: DriveGate,
        directory: Path,
        background: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """`directory` is the agent's own; `background` runs a task."""
        self._gate = gate
        self._background = background
        self._socket = directory / PG_SOCKET
        self._port = 0
        self._accepting: list[asyncio.Task[None]] = []

    @property
    def endpoint(self) -> str:
        """URL of the object store while the endpoints are open."""
        return f"http://127.0.0.1:{self._port}"

    def open(self) -> None:
        """Listen at both endpoints; does nothing if they are open. Raises OSError."""
        if self._accepting:
            return
        self._socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._socket.parent.chmod(0o700)
        self._socket.unlink(missing_ok=True)
        meta = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        blocks = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            meta.bind(str(self._socket))
            self._socket.chmod(0o600)
            blocks.bind(("127.0.0.1", 0))
            for listener in (meta, blocks):
                listener.listen()
                listener.setblocking(False)
        except BaseException:
            meta.close()
            blocks.close()
            raise
        self._port = blocks.getsockname()[1]
        self._accepting = [
            asyncio.create_task(self._accept(meta, protocol.DRIVE_META)),
            asyncio.create_task(self._accept(blocks, protocol.DRIVE_BLOCKS)),
        ]

    async def close(self) -> None:
        """Stop listening. Accepted connections end with their mount or the tunnel."""
        accepting, self._accepting = self._accepting, []
        for task in accepting:
            task.cancel()
        await asyncio.gather(*accepting, return_exceptions=True)
        if accepting:
            self._socket.unlink(missing_ok=True)

    async def _accept(self, listener: socket.socket, path: str) -> None:
        loop, slots = asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE)
        with listener:
            while True:
                await slots.acquire()
                try:
                    accepted, _ = await loop.sock_accept(listener)
                except OSError:  # the client left while it waited, or all descriptors are in use
                    slots.release()
                else:
                    self._background(self._gate.pass_on(path, accepted, slots.release))
                await asyncio.sleep(PACE_S)
