"""The drive in this process: the operations below the HTTP API, without the API."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import uvloop

from boxd.workspaces.drive import ALWAYS, Drive, OpenFile
from boxd.workspaces.pool import LIMITS
from wrkfs.fs import Filesystem

if TYPE_CHECKING:
    from wrkfs.config import VolumeConfig

RECEIVED = 64 * 1024
"""Size of the pieces of a body, as they arrive from a socket."""


class InProcess:
    """A session of a volume, with the same limits as those of the service."""

    def __init__(self, volume: VolumeConfig) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._fs = self._runner.run(Filesystem.connect(volume, kind="bench", limits=LIMITS))

    def close(self) -> None:
        """End the session."""
        self._runner.run(self._fs.close())
        self._runner.close()

    def put(self, name: str, data: bytes) -> None:
        """Write a whole file."""
        self._runner.run(self._put(name.encode(), data))

    def get(self, name: str, size: int) -> None:
        """Read and discard a whole file. Raises RuntimeError if its size differs."""
        self._runner.run(self._get(name.encode(), size))

    async def _put(self, name: bytes, data: bytes) -> None:
        view, at = memoryview(data), 0

        async def body() -> bytes | None:
            nonlocal at
            piece = bytes(view[at : at + RECEIVED])
            at += len(piece)
            return piece or None

        await Drive(self._fs).put(name, body, ALWAYS)

    async def _get(self, name: bytes, size: int) -> None:
        async with Drive(self._fs).at(name) as file:
            if not isinstance(file, OpenFile):
                raise TypeError(f"{name!r} is a directory")
            count = 0
            async for piece in file.pieces(0, file.size):
                count += len(piece)
        if count != size:
            raise RuntimeError(f"{name!r} has {count} bytes")
