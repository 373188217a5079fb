"""Ends of SSH connections that do not read, and commands that report their progress."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh

if TYPE_CHECKING:
    from asyncssh.connection import SSHConnection

MIB = 1 << 20
GIANT = 1 << 31
"""A window that never stops the sender."""
PIECE = 1 << 16
STAND_S = 0.7
"""Seconds without progress after which a command counts as blocked. A wrong value weakens a test
but does not make it fail."""


class Sink(asyncssh.SSHClientSession[bytes]):
    """Counts received bytes."""

    def __init__(self) -> None:
        self.size = 0
        self.over = asyncio.Event()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self.size += len(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set()


async def run_unread(
    connection: asyncssh.SSHClientConnection, command: str
) -> tuple[asyncssh.SSHClientChannel[bytes], Sink]:
    """Start a command whose output no window limits."""
    sink = Sink()
    channel, _ = await connection.create_session(
        lambda: sink, command, window=GIANT, encoding=None, max_pktsize=32768
    )
    return channel, sink


def read_nothing(connection: SSHConnection) -> None:
    """Stop reading: the socket keeps all further data."""
    assert connection._transport is not None
    connection._transport.pause_reading()


def read_again(connection: SSHConnection) -> None:
    """End `read_nothing`."""
    assert connection._transport is not None
    connection._transport.resume_reading()


def begin_keys_and_stop(connection: SSHConnection) -> None:
    """Start a key re-exchange and read no answer."""
    connection._send_kexinit()
    read_nothing(connection)


def counting(progress: Path, size: int) -> str:
    """Return a command that writes `size` bytes and records its progress in a file."""
    program = (
        "import os, pathlib\n"
        f"for done in range({PIECE}, {size} + 1, {PIECE}):\n"
        f"    os.write(1, bytes({PIECE}))\n"
        f"    pathlib.Path('{progress}').write_text(str(done))\n"
    )
    return f'{sys.executable} -I -S -c "{program}"'


async def until_it_stands(progress: Path, size: int) -> None:
    """Wait until such a command is blocked; it must not reach its end."""
    seen = 0
    while True:
        now = int(progress.read_text() or 0) if progress.exists() else 0
        if now and now == seen:
            return
        assert now < size, "all of it was taken, and nobody read"
        seen = now
        await asyncio.sleep(STAND_S)


def rss(pid: int) -> int:
    """Return the resident bytes of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)
