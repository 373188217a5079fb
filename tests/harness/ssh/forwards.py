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
    """Return a port with no listener at the moment."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        port: int = taken.getsockname()[1]
        return port


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read to the end of input, then answer with the input in upper case."""
    data = await reader.read()
    writer.write(data.upper() + b"!")
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def talk(path: Path, data: bytes) -> bytes:
    """Send all data through a Unix socket, end the input, and return the whole answer."""
    await until(lambda: listens(path))
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(data)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def check_intact(process: asyncio.subprocess.Process) -> None:
    """Check that the session still answers."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"intact\n")
    async with asyncio.timeout(30):
        assert await process.stdout.readline() == b"intact\n"
