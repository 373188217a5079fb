"""Asks a mount process how it does, through the socket beside its mountpoint."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE = 5.0
"""Seconds for the answer; the mount itself gives its stores 2."""
MAX_ANSWER = 64 * 1024
SILENT = "the mount process does not answer"


async def ask(path: Path, patience: float = PATIENCE) -> dict[str, object]:
    """What the mount process says; only `health` when it does not answer."""
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
    except (OSError, ValueError):  # also TimeoutError
        return {"health": SILENT}
    return answer if isinstance(answer, dict) else {"health": SILENT}


def _connected(path: Path) -> socket.socket:
    """Through its directory's descriptor: the path may be longer than a socket's name."""
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
