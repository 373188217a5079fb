"""Commands of ours with input and output of their own, and what they tell users to type."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from boxd.config import Address
from boxd.ssh.cli.command import MAX_STDIN, Call, Command, Console, ExitStatus, Reply
from boxd.ssh.cli.registry import CLI
from boxd.ssh.connection.listener import SshListener
from boxd.ssh.connection.listener_state import ListenerSettings
from boxd.ssh.connection.stdio import MAX_PENDING_INPUT, ChannelStdio
from tests.harness.ssh.openssh import HOST, Client, running
from tests.harness.ssh.unread import MIB, PIECE, STAND_S
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from tests.harness.ssh.frontdoor import Entrance

SIZE = 16 * MIB
"""More than a window and everything that may wait."""


class Commands:
    """A console of the test's own."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.stdio: ChannelStdio | None = None
        self.written = 0
        words: dict[str, Callable[[Call], Awaitable[Reply | ExitStatus]]]
        words = {"size": self.size, "echo": self.echo, "late": self.late, "flood": self.flood}
        commands = [Command((word,), "for a test", word, run) for word, run in words.items()]
        self.console = Console("cli", (*CLI.commands, *commands))

    async def size(self, call: Call) -> Reply:
        """Takes all of its input."""
        return Reply(None, f"{len(await call.stdin())}\n")

    async def echo(self, call: Call) -> ExitStatus:
        """Gives its input back."""
        while data := await call.stdio.read():
            await call.stdio.write(data)
        return ExitStatus(7)

    async def late(self, call: Call) -> ExitStatus:
        """Begins to read when it is told to."""
        assert isinstance(call.stdio, ChannelStdio)
        self.stdio = call.stdio
        await self.go.wait()
        return await self.echo(call)

    async def flood(self, call: Call) -> ExitStatus:
        """Writes more than anybody keeps."""
        for _ in range(SIZE // PIECE):
            await call.stdio.write(bytes(PIECE))
            self.written += PIECE
        return ExitStatus()


@pytest.fixture
def commands() -> Commands:
    """See Commands."""
    return Commands()


@asynccontextmanager
async def another(
    front_door: Entrance, keys: Path, console: Console = CLI, public_address: Address | None = None
) -> AsyncIterator[Client]:
    """A client of a second door before the same boxes."""
    settings = ListenerSettings(
        Address(HOST, 0), keys, console=console, public_address=public_address
    )
    door = SshListener(front_door.operations, settings)
    await door.start()
    try:
        yield Client(keys / "client", door.port, door.host_key)
    finally:
        await door.close(drain_s=0)


async def test_a_command_takes_its_input_as_a_whole(
    front_door: Entrance, tmp_path: Path, commands: Commands
) -> None:
    async with another(front_door, tmp_path, commands.console) as client:
        for size in (0, 1, MAX_STDIN):
            done = await client.run("cli", "size", stdin=bytes(size))
            assert (done.status, done.text, done.errors) == (0, f"{size}\n", "")
        done = await client.run("cli", "size", stdin=bytes(MAX_STDIN + 1))
        assert (done.status, done.text) == (2, "")
        assert f"longer than {MAX_STDIN} bytes" in done.errors
        done = await client.run("cli", "-tt", "size", stdin=b"a secret")
        assert (done.status, done.stdout) == (2, b"")
        assert "without -t" in done.errors
        assert "a secret" not in done.errors


async def test_input_and_output_stream_both_ways(
    front_door: Entrance, tmp_path: Path, commands: Commands
) -> None:
    data = bytes(range(256)) * 256 * 64
    async with another(front_door, tmp_path, commands.console) as client:
        done = await client.run("cli", "echo", stdin=data)
        assert (done.status, done.errors) == (7, "")
        assert done.stdout == data


async def test_input_that_nobody_reads_waits_at_the_client(
    front_door: Entrance, tmp_path: Path, commands: Commands
) -> None:
    async with another(front_door, tmp_path, commands.console) as client:
        assert (await client.run("cli", "ls", stdin=bytes(SIZE))).status == 0
        async with running(client.ssh("cli", "late")) as process:
            talk = asyncio.create_task(process.communicate(bytes(SIZE)))
            await until(lambda: commands.stdio is not None)
            assert commands.stdio is not None
            kept = commands.stdio._input
            await until(lambda: len(kept) >= MAX_PENDING_INPUT)
            await asyncio.sleep(STAND_S)
            assert len(kept) < 2 * MAX_PENDING_INPUT
            commands.go.set()
            stdout, _ = await talk
            assert (len(stdout), process.returncode) == (SIZE, 7)


async def test_a_client_that_leaves_while_its_input_waits_ends_its_command(
    front_door: Entrance, tmp_path: Path, commands: Commands
) -> None:
    async with another(front_door, tmp_path, commands.console) as client:
        async with client.second("cli") as connection:
            process = await connection.create_process("late")
            await until(lambda: commands.stdio is not None)
            process.stdin.write(bytes(4 * MAX_PENDING_INPUT))
            process.stdin.write_eof()
            assert commands.stdio is not None
            kept = commands.stdio._input
            await until(lambda: len(kept) >= MAX_PENDING_INPUT)
            await asyncio.sleep(STAND_S)
        await until(lambda: not kept)
        assert (await client.run("cli", "echo", stdin=b"on")).text == "on"


async def test_output_that_nobody_reads_waits_in_the_command(
    front_door: Entrance, tmp_path: Path, commands: Commands
) -> None:
    async with (
        another(front_door, tmp_path, commands.console) as client,
        client.second("cli") as connection,
    ):
        process = await connection.create_process("flood")
        seen = -1
        while not commands.written or seen != commands.written:
            seen = commands.written
            await asyncio.sleep(STAND_S)
        assert 0 < commands.written < SIZE
        whole = await process.stdout.read()
        assert (len(whole), commands.written) == (SIZE, SIZE)
        assert (await process.wait()).exit_status == 0


async def test_users_are_told_to_type_the_name_that_the_operator_gave(
    front_door: Entrance, tmp_path: Path
) -> None:
    public_address = Address("box.example.net", 22)
    async with another(front_door, tmp_path, public_address=public_address) as client:
        up = json.loads((await client.run("cli", "up web --json")).text)
        assert up["ssh_dest"] == "ssh web@box.example.net"
        assert "ssh cli@box.example.net ls" in (await client.run("session-no", "x")).errors
    (tmp_path / "2").mkdir()
    async with another(
        front_door, tmp_path / "2", public_address=Address("box.example.net", 0)
    ) as client:
        lines = (await client.run("cli", "help")).text
        assert f"ssh -p {client.port} web@box.example.net" in lines
