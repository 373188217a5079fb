"""Asks a mount process for its health, through the socket beside its mount point."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE = 5.0
"""Seconds for the answer. The mount process waits 2 seconds for its stores."""
MAX_ANSWER = 64 * 1024
SILENT = "the mount process does not answer"


async def ask(path: Path, patience: float = PATIENCE) -> dict[str, object]:
    """Return the answer of the mount process; only `health` if it does not answer."""
    try:
        async with asyncio.timeout(patience):
            reader, writer = await asyncio.open_unix_connection(
                sock=_connected(path), limit=MAX_ANSWER
            )
            try:
                line = await reader.readline()
            finally:
                writer.close()
        answer = json.loads(line)
    except (OSError, ValueError, RecursionError):  # also TimeoutError
        return {"health": SILENT}
    return answer if isinstance(answer, dict) else {"health": SILENT}


def _connected(path: Path) -> socket.socket:
    # The path may be too long for a Unix socket; the path through the descriptor is short.
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.setblocking(False)
    try:
        directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            client.connect(f"/proc/self/fd/{directory}/{path.name}")
        finally:
            os.close(directory)
    except BaseException:
        client.close()
        raise
    return client
