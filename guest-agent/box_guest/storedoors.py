"""The two doors in the box behind which the mount finds its stores.

A Unix socket for the metadata database, as PostgreSQL names it, and a loopback port for the object
store, whose clients know no Unix sockets. What comes in there goes out through the tunnel.
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

    from box_guest.forward import DriveGate

PG_SOCKET = ".s.PGSQL.5432"
AT_ONCE = 48
"""Connections to each store; more wait."""
PACE_S = 0.03
"""Between two connections: the daemon takes more than twice as many for misbehaviour."""


class StoreDoors:
    """See the module. `_accepting` changes only in `open` and `close`, which do not interleave."""

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
        """Where the object store answers while the doors are open."""
        return f"http://127.0.0.1:{self._port}"

    def open(self) -> None:
        """Listens at both doors; nothing happens while they are open. Raises OSError."""
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
            for door in (meta, blocks):
                door.listen()
                door.setblocking(False)
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
        """Listens no more. Connections that were taken end with their mount, or the tunnel."""
        accepting, self._accepting = self._accepting, []
        for task in accepting:
            task.cancel()
        await asyncio.gather(*accepting, return_exceptions=True)
        if accepting:
            self._socket.unlink(missing_ok=True)

    async def _accept(self, door: socket.socket, path: str) -> None:
        loop, room = asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE)
        with door:
            while True:
                await room.acquire()
                try:
                    accepted, _ = await loop.sock_accept(door)
                except OSError:  # it went away while it waited, or all descriptors are in use
                    room.release()
                else:
                    self._background(self._gate.pass_on(path, accepted, room.release))
                await asyncio.sleep(PACE_S)
