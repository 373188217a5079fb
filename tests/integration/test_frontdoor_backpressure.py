"""Clients that do not read what they asked for: the door's memory stays as it is.

The door runs in a process of its own, so that its memory is not the test's.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh
import pytest

from tests.harness.door_process import door_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.door_process import Door

MIB = 1 << 20
GIANT = 1 << 31
"""A window in which nothing stops at the window."""
GROWTH = 8 * MIB
OUTPUT = 200 * MIB


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    """Warm: what moved through it once is in its memory already."""
    async with door_process() as opened:
        for _ in range(2):
            done = await opened.client.run("web", f"head -c {16 * MIB} /dev/zero; cat >&2")
            assert len(done.stdout) == 16 * MIB
        yield opened


class Sink(asyncssh.SSHClientSession[bytes]):
    """Counts what comes."""

    def __init__(self) -> None:
        self.size = 0
        self.over = asyncio.Event()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self.size += len(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set()


async def stalled(progress: Path, size: int = OUTPUT) -> int:
    """How far a counting command came, when it goes no further."""
    seen = -1
    while True:
        now = int(progress.read_text() or 0) if progress.exists() else 0
        if now == seen and now:
            return now
        assert now < size
        seen = now
        await asyncio.sleep(1)


def counting(progress: Path) -> str:
    """A command that writes OUTPUT, and beside it how far it is."""
    return (
        f"i=0; while [ $i -lt {OUTPUT} ]; do head -c {MIB} /dev/zero; i=$((i+{MIB}));"
        f" echo $i > {progress}; done"
    )


async def test_a_giant_window_and_a_socket_that_nobody_reads(door: Door, tmp_path: Path) -> None:
    before = await door.use()
    async with door.connected("web") as connection:
        _, sink = await connection.create_session(
            Sink, counting(tmp_path / "progress"), window=GIANT
        )
        connection._transport.pause_reading()
        await stalled(tmp_path / "progress")
        assert (await door.use()).rss - before.rss < GROWTH
        connection._transport.resume_reading()
        await sink.over.wait()
        assert sink.size == OUTPUT
