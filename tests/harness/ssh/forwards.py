"""Programs at both ends of a forward, and free ports."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from tests.harness.ssh.openssh import HOST, listens
from tests.harness.wait import until

if TYPE_CHECKING:
    from pathlib import Path


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        port: int = taken.getsockname()[1]
        return port


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reads to the end of input, answers with what came in upper case."""
    data = await reader.read()
    writer.write(data.upper() + b"!")
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def talk(path: Path, data: bytes) -> bytes:
    """Sends all through a Unix socket, ends the sending, reads all."""
    await until(lambda: listens(path))
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(data)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def check_intact(process: asyncio.subprocess.Process) -> None:
    """The session still answers."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"intact\n")
    async with asyncio.timeout(30):
        assert await process.stdout.readline() == b"intact\n"
