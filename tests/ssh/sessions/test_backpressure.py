"""Clients that do not read what they asked for: the door's memory stays as it is.

The door runs in a process of its own, so that its memory is not the test's.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.harness.ssh.door_process import door_process
from tests.harness.ssh.openssh import HOST
from tests.harness.ssh.unread import (
    GIANT,
    MIB,
    begin_keys_and_stop,
    counting,
    read_again,
    read_nothing,
    run_unread,
    until_it_stands,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.harness.ssh.door_process import Door

GROWTH = 8 * MIB
OUTPUT = 64 * MIB
SESSIONS = 5
A_SESSION = (512 + 64 + 256) * 1024
"""What a session may hold that the client does not read: window and packet of the box's side, and
the share of its connection."""

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door() -> AsyncIterator[Door]:
    """Warm: what moved through it once is in its memory already."""
    async with door_process() as opened:
        for _ in range(2):
            done = await opened.client.run("web", f"head -c {16 * MIB} /dev/zero; cat >&2")
            assert len(done.stdout) == 16 * MIB
        yield opened


async def test_a_giant_window_and_a_socket_that_nobody_reads(door: Door, tmp_path: Path) -> None:
    before = await door.use()
    progress = tmp_path / "progress"
    async with door.client.second("web") as connection:
        _, sink = await run_unread(connection, counting(progress, OUTPUT))
        read_nothing(connection)
        await until_it_stands(progress, OUTPUT)
        assert (await door.use()).rss - before.rss < GROWTH
        read_again(connection)
        await sink.over.wait()
        assert sink.size == OUTPUT


async def test_a_client_that_begins_new_keys_and_stops(door: Door, tmp_path: Path) -> None:
    before = await door.use()
    progress = tmp_path / "progress"
    async with door.client.second("web") as connection:
        await run_unread(connection, counting(progress, OUTPUT))
        begin_keys_and_stop(connection)
        await until_it_stands(progress, OUTPUT)
        assert (await door.use()).rss - before.rss < GROWTH


async def test_a_forwarded_connection_that_nobody_reads(door: Door) -> None:
    sent = [0]

    async def pour(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(OUTPUT // MIB):
            writer.write(bytes(MIB))
            await writer.drain()
            sent[0] += MIB
        writer.close()
        await writer.wait_closed()

    before = await door.use()
    server = await asyncio.start_server(pour, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    async with server, door.client.second("web") as connection:
        reader, _ = await connection.open_connection(HOST, port, encoding=None, window=GIANT)
        read_nothing(connection)
        while not sent[0]:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.1)
        seen = -1
        while seen != sent[0]:
            seen = sent[0]
            await asyncio.sleep(0.7)
        assert seen < OUTPUT
        assert (await door.use()).rss - before.rss < GROWTH
        read_again(connection)
        size = 0
        while data := await reader.read(MIB):
            size += len(data)
        assert size == OUTPUT


async def test_sessions_that_nobody_reads(door: Door, tmp_path: Path) -> None:
    before = await door.use()
    async with door.client.second("web") as connection:
        places = [tmp_path / str(number) for number in range(SESSIONS)]
        for progress in places:
            await run_unread(connection, counting(progress, OUTPUT))
        read_nothing(connection)
        for progress in places:
            await until_it_stands(progress, OUTPUT)
        assert (await door.use()).rss - before.rss < GROWTH + SESSIONS * A_SESSION
        # Others are served meanwhile.
        assert (await door.client.run("web", "echo here")).stdout == b"here\n"
