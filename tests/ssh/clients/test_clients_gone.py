"""Clients that go away in the middle of what they do leave nothing behind in the box."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from boxd.tunnel.registry import TunnelRegistry
from tests.harness.logs import provoked
from tests.harness.ssh.forwards import free_port
from tests.harness.ssh.key_agent import ssh_agent
from tests.harness.ssh.openssh import HOST, running
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.ssh.frontdoor import Entrance

MIB = 1 << 20
ROUNDS = 4


def descriptors(pid: int) -> Counter[str]:
    """How many of each kind a process has open."""
    found: Counter[str] = Counter()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            found[os.readlink(entry).partition("[")[0]] += 1
    return found


@pytest.mark.timeout(300)
async def test_nothing_is_left_of_clients_that_were_killed(
    front_door: Entrance, tmp_path: Path
) -> None:
    client, holds = front_door.client, front_door.lifecycle.attachments
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(1 << 36)  # no copy of it ends before all the clients are there
    agent = client.directory / "agent"
    use = f"IdentityAgent={agent}"
    options = [*client.options(), "-q", "-o", "User=web"]
    async with ssh_agent(agent, client.key):
        own = [use if w == "IdentityAgent=none" else w for w in client.ssh("web", "-A", "cat")]
        ways = [
            ["scp", *options, str(large), f"{HOST}:{tmp_path / 'up'}"],
            ["scp", *options, f"{HOST}:{large}", "/dev/null"],
            ["scp", "-O", *options, f"{HOST}:{large}", "/dev/null"],
            client.ssh("web", "cat /dev/zero"),
            client.ssh("web", "-tt", "sleep 600; true"),
            client.ssh("web", "-W", f"{HOST}:{front_door.door.port}", "")[:-1],
            own,
        ]

        async def all_at_once() -> None:
            # The loop of the tests says so where the service's own says nothing.
            with provoked("asyncio") as log:
                async with AsyncExitStack() as stack:
                    for way in ways:
                        await stack.enter_async_context(running(way))
                    (box,) = await front_door.store.all_boxes()
                    await until(lambda: holds.count(box.id) == len(ways))
                await until(lambda: holds.count(box.id) == 0, 60)
            assert all("socket.send() raised exception" in line for line in log)

        assert (await client.run("web", "true")).status == 0
        (process,) = front_door.backend._running.values()
        await all_at_once()
        here = psutil.Process(process.pid)
        await until(lambda: not here.children(), 60)
        before, threads = descriptors(process.pid), here.num_threads()
        for _ in range(ROUNDS):
            await all_at_once()
        await until(lambda: not here.children(), 60)
        await until(lambda: not descriptors(process.pid) - before)
        await until(lambda: here.num_threads() <= threads)
        await until(lambda: not front_door.door._state.connections)
        (box,) = await front_door.store.all_boxes()
        await until(lambda: tunnel_channels(front_door, box.id) == 1)


def tunnel_channels(front_door: Entrance, box_id: str) -> int:
    """How many channels are open between the daemon and a box; one is theirs."""
    tunnels = front_door.lifecycle._assembly.tunnels
    assert isinstance(tunnels, TunnelRegistry)
    tunnel = tunnels.peek(box_id)
    assert tunnel is not None
    return len(tunnel.connection._channels)


@asynccontextmanager
async def given_up(front_door: Entrance, command: list[str]) -> AsyncIterator[psutil.Process]:
    """A client that went away while its box's agent stood still; the agent then goes on."""
    holds = front_door.lifecycle.attachments
    assert (await front_door.client.run("web", "true")).status == 0
    (box,) = await front_door.store.all_boxes()
    await until(lambda: holds.count(box.id) == 0)
    (started,) = front_door.backend._running.values()
    agent = psutil.Process(started.pid)
    agent.suspend()
    try:
        async with running(command):
            await until(lambda: holds.count(box.id) == 1)
        await until(lambda: holds.count(box.id) == 0)
    finally:
        agent.resume()
    yield agent
    await until(lambda: tunnel_channels(front_door, box.id) == 1)


@pytest.mark.parametrize("options", [["-T"], ["-tt"]], ids=["pipes", "terminal"])
async def test_a_command_that_nobody_waits_for_any_more_is_ended(
    front_door: Entrance, tmp_path: Path, options: list[str]
) -> None:
    """Its client went away before the box had opened the session."""
    command = front_door.client.ssh("web", *options, f"echo > {tmp_path / 'ran'}; exec sleep 600")
    async with given_up(front_door, command) as agent:
        assert (await front_door.client.run("web", "true")).status == 0
        await until(lambda: not agent.children())


async def test_a_connection_that_nobody_waits_for_any_more_is_closed(front_door: Entrance) -> None:
    """As above: it comes to be open, and nobody would ever close it."""
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b""
        writer.close()
        over.set()

    server = await asyncio.start_server(serve, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    command = front_door.client.ssh("web", "-W", f"{HOST}:{port}", "")[:-1]
    async with server, given_up(front_door, command), asyncio.timeout(60):
        await over.wait()


def _listens(port: int) -> bool:
    with open("/proc/net/tcp") as table:
        return any(f":{port:04X} " in line and " 0A " in line for line in table)


async def test_a_forwarded_connection_ends_with_either_side(front_door: Entrance) -> None:
    """Who dies without a word is told to the other side by its own end."""
    gone = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"here\n")
        if not await reader.read():
            gone.set()
        writer.close()

    server = await asyncio.start_server(wait, HOST, 0)
    port, local = server.sockets[0].getsockname()[1], free_port()
    command = front_door.client.ssh("web", "-N", "-L", f"{HOST}:{local}:{HOST}:{port}", "")[:-1]
    async with server:
        async with running(command):
            await until(lambda: _listens(local))
            reader, writer = await asyncio.open_connection(HOST, local)
            async with asyncio.timeout(60):
                assert await reader.readline() == b"here\n"
        async with asyncio.timeout(60):
            await gone.wait()
            assert await reader.read() == b""
        writer.close()
    (box,) = await front_door.store.all_boxes()
    await until(lambda: front_door.lifecycle.attachments.count(box.id) == 0)
