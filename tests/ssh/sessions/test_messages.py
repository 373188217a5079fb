"""Rarer messages of SSH through the front door: new keys, shared connections, what is refused."""

from __future__ import annotations

import asyncio
import hashlib
import os
from typing import TYPE_CHECKING

import asyncssh
import pytest

from boxd.ssh.connection.server_connection import ServerConnection
from boxd.tunnel.registry import TunnelRegistry
from tests.harness.logs import provoked
from tests.harness.ssh.forwards import check_intact, free_port, shout, talk
from tests.harness.ssh.openssh import HOST, end_input, run, running
from tests.harness.wait import until

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from asyncssh.connection import SSHConnection

    from tests.harness.ssh.frontdoor import Entrance

MIB = 1 << 20


async def test_the_client_makes_new_keys_while_bytes_go_both_ways(front_door: Entrance) -> None:
    data = os.urandom(6 * MIB)
    client = front_door.client
    done = await client.run("web", "-o", "RekeyLimit=1M", "cat", stdin=data)
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(data).digest()


async def test_door_and_agent_make_new_keys_while_bytes_go_both_ways(front_door: Entrance) -> None:
    """As after a gibibyte, but sooner: on the user's connection and in the tunnel."""
    data = os.urandom(6 * MIB)
    made = 0

    def counted(connection: SSHConnection) -> None:
        begin = connection._send_kexinit

        def again() -> None:
            nonlocal made
            made += 1
            begin()

        vars(connection)["_send_kexinit"] = again
        connection._rekey_bytes = MIB

    async with running(front_door.client.ssh("web", "cat")) as process:
        await check_intact(process)
        (server,) = front_door.door._state.connections
        assert isinstance(server, ServerConnection)
        counted(server._conn)
        (box,) = await front_door.store.all_boxes()
        tunnels = front_door.lifecycle._assembly.tunnels
        assert isinstance(tunnels, TunnelRegistry)
        tunnel = tunnels.peek(box.id)
        assert tunnel is not None
        counted(tunnel.connection)
        async with asyncio.timeout(60):
            stdout, _ = await process.communicate(data)
    assert hashlib.sha256(stdout).digest() == hashlib.sha256(data).digest()
    assert made >= 8, "each of the two after each MiB that it sent"


async def test_a_shared_connection_takes_forwardings_later(
    front_door: Entrance, tmp_path: Path
) -> None:
    server = await asyncio.start_server(shout, HOST, 0)
    target = f"{HOST}:{server.sockets[0].getsockname()[1]}"
    client, local = front_door.client, tmp_path / "l"
    async with server, client.master("web") as shared:
        for _ in range(2):
            asked = ["ssh", *client.options(), "-l", "web", *shared, "-O"]
            there = ["-L", f"{local}:{target}", HOST]
            assert (await run([*asked, "forward", *there])).status == 0
            assert await talk(local, b"later") == b"LATER!"
            assert (await run([*asked, "cancel", *there])).status == 0
            local.unlink(missing_ok=True)
        done = await client.run("web", *shared, "echo still here")
        assert done.stdout == b"still here\n"


async def test_a_display_is_refused_and_the_session_stays(front_door: Entrance) -> None:
    front_door.client.log_level = "INFO"
    command = front_door.client.ssh("web", "-X", 'echo "[$DISPLAY]"; exit 3')
    done = await run(["env", f"DISPLAY={HOST}:99", *command])
    assert (done.status, done.stdout) == (3, b"[]\n")
    assert "X11 forwarding request failed" in done.errors


@pytest.mark.parametrize("layer", ["create_tun", "create_tap"])
async def test_network_devices_are_refused_and_the_session_stays(
    front_door: Entrance, layer: str
) -> None:
    async with connected(front_door) as connection:
        create = getattr(connection, layer)
        with pytest.raises(asyncssh.ChannelOpenError):
            await create(asyncssh.SSHTunTapSession)
        assert (await connection.run("echo here")).stdout == b"here\n"


async def test_listening_for_the_client_is_refused_and_the_session_stays(
    front_door: Entrance, tmp_path: Path
) -> None:
    async with connected(front_door) as connection:
        with pytest.raises(asyncssh.ChannelListenError):
            await connection.forward_remote_port(HOST, free_port(), HOST, 1)
        with pytest.raises(asyncssh.ChannelListenError):
            await connection.forward_remote_path(str(tmp_path / "r"), str(tmp_path / "l"))
        assert not (tmp_path / "r").exists()
        assert (await connection.run("echo here")).stdout == b"here\n"


async def test_a_half_closed_command_goes_on_writing(front_door: Entrance) -> None:
    """Its input has ended, and only then it begins to write."""
    async with running(front_door.client.ssh("web", "cat >&2; echo end; seq 20000")) as process:
        async with asyncio.timeout(60):
            stdout, stderr = await process.communicate(b"x" * MIB)
    assert stdout.splitlines()[0] == b"end"
    assert len(stdout.splitlines()) == 20001
    assert stderr == b"x" * MIB


async def test_a_held_session_ends_with_its_client(front_door: Entrance) -> None:
    """The client goes away while the door waits for it to read."""
    # What is written between the loss of a connection and the news of it, asyncio counts aloud.
    with provoked("asyncio") as lines:
        async with connected(front_door) as connection:
            await connection.create_session(
                asyncssh.SSHClientSession, "cat /dev/zero", window=1 << 31, encoding=None
            )
            assert connection._transport is not None
            connection._transport.pause_reading()
            (box,) = await front_door.store.all_boxes()
            await until(lambda: front_door.lifecycle.attachments.count(box.id) == 1)
        await until(lambda: front_door.lifecycle.attachments.count(box.id) == 0)
    assert set(lines) <= {"WARNING asyncio socket.send() raised exception."}
    async with running(front_door.client.ssh("web", "cat")) as process:
        await check_intact(process)
        await end_input(process)


async def test_a_file_transfer_ends_by_a_signal_and_by_nothing_else_of_terminals(
    front_door: Entrance, capfd: pytest.CaptureFixture[str]
) -> None:
    """`PIPE` is what a transfer gets whose client was killed while it read."""

    async def ask(kind: int, words: bytes) -> int:
        process.stdin.write((1 + len(words)).to_bytes(4, "big") + bytes([kind]) + words)
        size = int.from_bytes(await process.stdout.readexactly(4), "big")
        answer: bytes = await process.stdout.readexactly(size)
        return answer[0]

    async with connected(front_door) as connection, asyncio.timeout(60):
        process = await connection.create_process(subsystem="sftp")
        assert await ask(1, b"\0\0\0\3") == 2, "its version"
        process.change_terminal_size(132, 43)
        process.send_break(100)
        assert await ask(16, b"\0\0\0\1\0\0\0\1.") == 104, "the name of where it is"
        process.send_signal("PIPE")
        done = await process.wait()
        assert done.exit_signal is not None
        assert done.exit_signal[0] == "PIPE"
        assert (await connection.run("echo here")).stdout == b"here\n"
    assert "failed" not in capfd.readouterr().err


def connected(front_door: Entrance) -> AbstractAsyncContextManager[asyncssh.SSHClientConnection]:
    """A connection of the test's own to box `web`."""
    return front_door.client.second("web")
