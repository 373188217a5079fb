"""The mount's status socket: each connection receives one JSON line about the mount's health.

Protocol adapter only. The socket is outside the mount and accessible to its owner only: a call
through the mount itself would wait for the very mount it asks about.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from wrkfs.health import health

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from wrkfs.fs import Filesystem

MAX_CLIENTS = 16
"""Maximum number of concurrent connections."""


@asynccontextmanager
async def serving(fs: Filesystem, path: Path | None) -> AsyncIterator[None]:
    """Serve the socket while the context lasts; do nothing without a path. Raises OSError."""
    if path is None:
        yield
        return
    status = _Status(fs)
    server = await asyncio.start_unix_server(status.answer, sock=_listener(path))
    try:
        yield
    finally:
        server.close()
        await status.close()
        with suppress(FileNotFoundError):
            os.unlink(path)


class _Status:
    """Critical section: none across an await; `_clients` holds the tasks of connected clients."""

    def __init__(self, fs: Filesystem) -> None:
        self._fs = fs
        self._clients: set[asyncio.Task[None]] = set()

    async def answer(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one client."""
        task = asyncio.current_task()
        if task is None or len(self._clients) >= MAX_CLIENTS:
            writer.close()
            return
        self._clients.add(task)
        try:
            writer.write(json.dumps(asdict(await health(self._fs))).encode() + b"\n")
            with suppress(ConnectionError):  # the client has disconnected
                await writer.drain()
        finally:
            self._clients.discard(task)
            writer.close()

    async def close(self) -> None:
        """Disconnect the clients."""
        for task in list(self._clients):
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)


def _listener(path: Path) -> socket.socket:
    """Bind through the directory's descriptor: the path may be longer than a socket name may be."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), 0o600)
        directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            listener.bind(f"/proc/self/fd/{directory}/{path.name}")
        finally:
            os.close(directory)
    except BaseException:
        listener.close()
        raise
    return listener
