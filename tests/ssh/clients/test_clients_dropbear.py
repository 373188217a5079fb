"""Dropbear's client, which speaks a part of the protocol and has rules of its own."""

from __future__ import annotations

import asyncio
import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from tests.harness.ssh.forwards import check_intact, free_port, shout
from tests.harness.ssh.openssh import HOST, end_input, run, running
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.ssh.frontdoor import Entrance

    Dropbear = Callable[..., list[str]]

MIB = 1 << 20


@pytest.fixture
async def dropbear(front_door: Entrance) -> Dropbear:
    """The command line of `dbclient ... web@host`: its options, then the command."""
    key = front_door.client.directory / "dropbear"
    made = await run(["dropbearkey", "-t", "ed25519", "-f", str(key)])
    assert made.status == 0
    first = ["dbclient", "-y", "-y", "-i", str(key), "-p", str(front_door.door.port)]
    return lambda *options, command=(): [*first, *options, f"web@{HOST}", *command]


async def test_dropbear_moves_input_and_both_streams(dropbear: Dropbear) -> None:
    data = os.urandom(2 * MIB)
    done = await run(dropbear(command=["cat; echo end >&2; exit 5"]), stdin=data)
    assert done.status == 5
    assert done.stderr.endswith(b"\nend\n"), "after its own words about the host key"
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(data).digest()


async def test_dropbear_forwards_and_a_refusal_leaves_its_session(dropbear: Dropbear) -> None:
    server = await asyncio.start_server(shout, HOST, 0)
    here, nothing = free_port(), free_port()
    forwards = [
        *("-L", f"{HOST}:{here}:{HOST}:{server.sockets[0].getsockname()[1]}"),
        *("-L", f"{HOST}:{nothing}:{HOST}:{free_port()}"),
    ]
    async with server, running(dropbear(*forwards, command=["cat"])) as process:
        await check_intact(process)
        await until(lambda: _listens(here))
        assert await _talk(nothing) == b""
        assert await _talk(here) == b"HELLO!"
        await check_intact(process)
        await end_input(process)


async def test_dropbear_is_a_pipe_to_a_port(dropbear: Dropbear) -> None:
    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 ready\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(greet, HOST, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        done = await run(dropbear("-B", f"{HOST}:{port}"))
    assert done.stdout == b"220 ready\n"


async def _talk(port: int) -> bytes:
    """What comes back for `hello`; nothing when it is refused."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(b"hello")
        writer.write_eof()
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def _listens(port: int) -> bool:
    with open("/proc/net/tcp") as table:
        return any(f":{port:04X} " in line and " 0A " in line for line in table)
