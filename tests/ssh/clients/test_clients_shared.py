"""Many sessions of one connection: none loses a byte, and none disturbs the others."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from boxd.ssh.connection.server_connection import SESSIONS_PER_CONNECTION
from tests.harness.ssh.forwards import check_intact
from tests.harness.ssh.key_agent import ssh_agent
from tests.harness.ssh.openssh import end_input, kill, run, running
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import asyncssh

    from tests.harness.ssh.frontdoor import Entrance

MIB = 1 << 20


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_fast_commands_at_once_lose_nothing(front_door: Entrance) -> None:
    """Seven hundred, as many at once as a connection may have."""

    async def work(connection: asyncssh.SSHClientConnection, numbers: Iterator[int]) -> None:
        for number in numbers:
            command = f"echo ok {number}; echo e{number} >&2; exit {number % 200}"
            done = await connection.run(command)
            assert (done.stdout, done.stderr) == (b"ok %d\n" % number, b"e%d\n" % number)
            assert done.exit_status == number % 200

    numbers = iter(range(700))
    async with front_door.client.second("web") as connection:
        await connection.run("true")
        await asyncio.gather(
            *(work(connection, numbers) for _ in range(SESSIONS_PER_CONNECTION - 1))
        )


async def test_a_held_session_that_ends_leaves_its_neighbours_alone(front_door: Entrance) -> None:
    """One has written all that its windows take, and its reader goes away."""
    client = front_door.client
    holds = front_door.lifecycle.attachments
    data = os.urandom(MIB)
    async with client.master("web") as shared, running(client.ssh("web", *shared, "cat")) as other:
        await check_intact(other)
        (box,) = await front_door.store.all_boxes()
        for _ in range(3):
            async with running(client.ssh("web", *shared, "exec cat /dev/zero")) as held:
                await until(lambda: holds.count(box.id) == 2)
                done = await client.run("web", *shared, "cat", stdin=data)
                assert (done.status, done.stdout) == (0, data)
                kill(held)
            await check_intact(other)
            await until(lambda: holds.count(box.id) == 1)
        await end_input(other)


async def test_a_closed_channel_with_unread_output_leaves_its_neighbours_alone(
    front_door: Entrance,
) -> None:
    """As above by another client, which closes without having read."""
    holds = front_door.lifecycle.attachments
    async with front_door.client.second("web") as connection, asyncio.timeout(60):
        other = await connection.create_process("cat")
        for number in range(5):
            held = await connection.create_process("cat /dev/zero", window=65536)
            assert await held.stdout.read(1) == b"\0"
            held.channel.pause_reading()
            other.stdin.write(b"%d\n" % number)
            assert await other.stdout.readline() == b"%d\n" % number
            held.close()
            data = os.urandom(MIB)
            done = await connection.run("cat", input=data)
            assert done.stdout == data
        (box,) = await front_door.store.all_boxes()
        await until(lambda: holds.count(box.id) == 1)
        other.stdin.write_eof()
        assert (await other.wait()).exit_status == 0


async def test_how_commands_ended_is_told_in_full(front_door: Entrance) -> None:
    async with front_door.client.second("web") as connection:
        for name in ("TERM", "KILL", "SEGV", "USR1"):
            done = await connection.run(f"ulimit -c 0; echo out; kill -{name} $$")
            assert done.stdout == b"out\n"
            assert done.exit_signal is not None
            assert done.exit_signal[0] == name
        for status in (0, 1, 127, 255):
            assert (await connection.run(f"exit {status}")).exit_status == status


async def test_a_session_has_the_clients_agent_only_if_it_asked_itself(
    front_door: Entrance,
) -> None:
    """Also when another one of the same connection has it."""
    client = front_door.client
    extra = client.make_key("extra", "-t", "ed25519")
    agent, shared = client.directory / "agent", client.directory / "m"
    async with ssh_agent(agent, extra):

        def ssh(*words: str) -> list[str]:
            use = f"IdentityAgent={agent}"
            command = client.ssh("web", "-S", str(shared), *words)
            return [use if word == "IdentityAgent=none" else word for word in command]

        show = 'echo "[$SSH_AUTH_SOCK]"'
        async with running(ssh("-M", "-A", f"{show}; cat")) as first:
            assert first.stdout is not None
            assert (await first.stdout.readline()).startswith(b"[/")
            assert (await run(ssh("-a", show))).stdout == b"[]\n"
            assert (await run(ssh("-A", "ssh-add -l"))).status == 0
            assert (await run(ssh("-a", show))).stdout == b"[]\n"
            await end_input(first)
