"""Who has no key, or any number of them, keeps nobody out."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from boxd.config import Address
from boxd.ssh.connection import limits, listener
from boxd.ssh.connection.listener_state import ListenerSettings
from tests.harness.ssh.openssh import HOST, Client, running
from tests.harness.wait import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.ssh.frontdoor import Entrance

IDLE = 120


@pytest.fixture
def only_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback is all that a test has, and the door takes it for any other network."""
    monkeypatch.setattr(limits.ConnectionLimits, "_is_exempt", lambda *_: False)


def idle(stack: ExitStack, front_door: Entrance, *sources: str) -> list[socket.socket]:
    """Connections that say nothing, of each source in turn."""
    return [
        stack.enter_context(
            socket.create_connection(
                (HOST, front_door.door.port), source_address=(sources[number % len(sources)], 0)
            )
        )
        for number in range(IDLE)
    ]


async def settled(connections: list[socket.socket]) -> list[socket.socket]:
    """Those that are still open when the door has looked at all of them."""
    loop = asyncio.get_running_loop()
    left = []
    for connection in connections:
        connection.setblocking(False)
        try:
            greeting = await loop.sock_recv(connection, 100)
            if greeting:
                left.append(connection)
        except ConnectionResetError:
            pass
    return left


async def misbehave(front_door: Entrance) -> None:
    """Says what is no SSH, for which there is a penalty of 90 seconds."""
    reader, writer = await asyncio.open_connection(HOST, front_door.door.port)
    writer.write(b"SSH-2.0-x\r\n" + b"\xff" * 5000)
    with suppress(ConnectionError):
        await reader.read()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def dawdle(port: int, said: bytes) -> None:
    """Says no more than that, until it is sent away; for that there is a penalty of 10 seconds."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(said)
    assert (await reader.read()).startswith(b"SSH-2.0-")
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_idle_connections_of_the_own_host_do_not_lock_out(front_door: Entrance) -> None:
    with ExitStack() as stack:
        left = await settled(idle(stack, front_door, HOST))
        assert len(left) == IDLE
        done = await front_door.client.run("web", "echo in")
        assert done.stdout == b"in\n", done.errors


@pytest.mark.usefixtures("only_strangers")
async def test_idle_connections_of_many_strangers_do_not_lock_out(front_door: Entrance) -> None:
    """Nor who was never seen before."""
    with ExitStack() as stack:
        strangers = [f"127.0.{number}.1" for number in range(1, 111)]
        left = await settled(idle(stack, front_door, *strangers))
        assert len(left) >= limits.PENDING_UNKNOWN
        done = await front_door.client.run("web", "echo in")
        assert done.stdout == b"in\n", done.errors


@pytest.mark.usefixtures("only_strangers")
async def test_who_was_here_is_not_locked_out_with_the_own_network(front_door: Entrance) -> None:
    """By others at the same address: the source held a box lately."""
    client = front_door.client
    assert (await client.run("web", "true")).status == 0
    with ExitStack() as stack:
        assert len(await settled(idle(stack, front_door, HOST))) == IDLE
        assert (await client.run("web", "echo in")).stdout == b"in\n"
        await misbehave(front_door)
        assert (await client.run("web", "echo in")).stdout == b"in\n"


@pytest.mark.usefixtures("only_strangers")
async def test_a_stranger_who_misbehaves_is_not_let_in(front_door: Entrance) -> None:
    assert (await front_door.client.run("cli", "whoami")).status == 0
    await misbehave(front_door)
    assert (await front_door.client.run("cli", "whoami")).status == 255


@pytest.mark.usefixtures("only_strangers")
async def test_who_does_not_log_in_in_time_is_sent_away_and_soon_not_let_in(
    front_door: Entrance, tmp_path: Path
) -> None:
    assert listener.LOGIN_GRACE_S == 30
    door = listener.SshListener(front_door.operations, ListenerSettings(Address(HOST, 0), tmp_path))
    await door.start()
    try:
        client = Client(tmp_path / "client", door.port, door.host_key)
        assert (await client.run("cli", "whoami")).status == 0
        assert door._acceptor is not None
        door._acceptor.update(login_timeout=1)
        async with asyncio.timeout(60):
            await asyncio.gather(*(dawdle(door.port, said) for said in (b"", b"SSH-2.0-x\r\n") * 3))
        assert (await client.run("cli", "whoami")).status == 255
    finally:
        await door.close(drain_s=0)


async def test_the_connections_of_a_key_are_bounded(
    front_door: Entrance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS_PER_OWNER", 2)
    client = front_door.client
    client.log_level = "INFO"
    async with client.master("web"):
        async with running(client.ssh("cat", "echo up; cat")) as second:
            assert second.stdout is not None
            assert await second.stdout.readline() == b"up\n"
            done = await client.run("web", "true")
            assert done.status == 255
            assert "at most 2 connections of one key are open at once" in done.errors
        other = front_door.new_client("other")
        assert (await other.run("cli", "whoami")).status == 0
    # The door hears of an end a moment later than the client.
    authenticated = front_door.door._state.limits._authenticated
    await until(lambda: not authenticated)
    assert (await client.run("web", "true")).status == 0


async def test_keys_that_cost_nothing_do_not_fill_the_service(
    front_door: Entrance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle connection makes room; one that works in a box stays."""
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", 2)
    mine, idler, late = (front_door.new_client(name) for name in ("mine", "idler", "late"))
    idle_command = ["ssh", *idler.options(), "-o", "LogLevel=INFO", "-N", "-l", "web", HOST]
    async with running(mine.ssh("web", "echo up; cat")) as working:
        assert working.stdout is not None
        assert await working.stdout.readline() == b"up\n"
        async with running([*idle_command[:1], "-v", *idle_command[1:]]) as waiting:
            assert waiting.stderr is not None
            while b"Authenticated to" not in await waiting.stderr.readline():
                pass
            assert (await late.run("web", "echo in")).stdout == b"in\n"
            assert b"this one was idle" in await waiting.stderr.read()
        stdout, _ = await working.communicate(b"still here")
        assert stdout == b"still here"
