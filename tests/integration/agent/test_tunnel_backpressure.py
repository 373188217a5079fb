"""Ends of a tunnel that do not read: the other end holds back and stays small."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncssh

from box_guest.shared.backpressure import HIGH
from boxd.tunnel.channel import WRITE_BUFFER
from tests.harness.agents.impostor import GREETING, Impostor, dial, host_key
from tests.harness.ssh.unread import (
    GIANT,
    MIB,
    begin_keys_and_stop,
    counting,
    read_again,
    read_nothing,
    rss,
    run_unread,
    until_it_stands,
)
from tests.harness.wait import until

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.tunnel.channel import Exec
    from tests.harness.agents.agent import LocalBox

    Session = asyncssh.SSHServerSession[bytes]

OUTPUT = 64 * MIB
PIECE = 1 << 16
SOCKETS = 2 * MIB
"""More than the two ends of a Unix socket hold."""


class Deaf(Impostor):
    """An agent that asks for as much input as there is, and takes none."""

    connection: asyncssh.SSHServerConnection

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self.connection = conn

    def session_requested(self) -> Session | tuple[asyncssh.SSHServerChannel[bytes], Session]:
        if not self.control.started:
            return self.control
        chan = self.connection.create_server_channel(window=GIANT)
        return chan, Deafness()


class Deafness(asyncssh.SSHServerSession[bytes]):
    """Runs any command."""

    def exec_requested(self, command: str) -> bool:
        return True


async def write_while_it_takes(running: Exec) -> int:
    """Input for a command until it takes no more, or OUTPUT."""
    written = 0
    while running._writable.is_set() and written < OUTPUT:
        await running.write(bytes(PIECE))
        written += PIECE
        await asyncio.sleep(0)
    return written


async def test_input_for_an_agent_that_does_not_read_is_held_back(local_box: LocalBox) -> None:
    await local_box.stop()
    await local_box.open()
    server = Deaf([GREETING])
    connection = await dial(local_box.run_dir, host_key(local_box), server)
    running = await (await local_box.tunnel()).start("x")
    read_nothing(connection)
    assert await write_while_it_takes(running) < HIGH + WRITE_BUFFER + SOCKETS
    connection.abort()
    await connection.wait_closed()


async def test_input_for_an_agent_that_begins_new_keys_and_stops_is_held_back(
    local_box: LocalBox,
) -> None:
    await local_box.stop()
    await local_box.open()
    server = Deaf([GREETING])
    connection = await dial(local_box.run_dir, host_key(local_box), server)
    running = await (await local_box.tunnel()).start("x")
    begin_keys_and_stop(connection)
    await until(lambda: not running._writable.is_set())
    assert await write_while_it_takes(running) == 0
    connection.abort()
    await connection.wait_closed()


async def test_an_agent_whose_daemon_does_not_read_stays_small(
    local_box: LocalBox, tmp_path: Path
) -> None:
    await local_box.run(f"head -c {16 * MIB} /dev/zero")
    connection = (await local_box.tunnel()).connection
    assert local_box.process is not None
    before = rss(local_box.process.pid)
    progress = tmp_path / "progress"
    _, sink = await run_unread(connection, counting(progress, OUTPUT))
    read_nothing(connection)
    await until_it_stands(progress, OUTPUT)
    assert rss(local_box.process.pid) - before < 8 * MIB
    read_again(connection)
    await sink.over.wait()
    assert sink.size == OUTPUT
