"""Forwards through the tunnel: TCP, Unix sockets, forwarded SSH agents."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh
import pytest

from boxd.errors import NothingListening
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.agents.agent import LocalBox


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
    await writer.wait_closed()


@asynccontextmanager
async def echo_server() -> AsyncIterator[int]:
    """A port that sends back what it gets."""
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


def closed_port() -> int:
    """A port at which nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


async def test_bytes_go_both_ways(local_box: LocalBox) -> None:
    data = os.urandom(3_000_000)
    async with echo_server() as port:
        stream = await (await local_box.tunnel()).dial("127.0.0.1", port)

        async def send() -> None:
            for start in range(0, len(data), 65536):
                await stream.write(data[start : start + 65536])
            stream.write_eof()

        sending = asyncio.create_task(send())
        received = b""
        while block := await stream.read():
            received += block
        await sending
        stream.close()
    assert received == data


@pytest.mark.parametrize("size", range(256 * 1024, 1024 * 1024, 128 * 1024))
async def test_the_last_bytes_of_a_target_arrive_whole_at_a_slow_reader(
    local_box: LocalBox, size: int
) -> None:
    data = os.urandom(size)
    sent = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.write(data)
        writer.close()
        await writer.wait_closed()
        sent.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, asyncio.timeout(30):
        port = server.sockets[0].getsockname()[1]
        stream = await (await local_box.tunnel()).dial("127.0.0.1", port)
        stream.write_eof()
        await sent.wait()
        # While a command runs, the agent reads everything that the target sent. The last bytes
        # wait in the agent, because this side has not read and so has not opened the window.
        await local_box.run("true")
        received = b""
        while block := await stream.read():
            received += block
        assert received == data
        await until(lambda: stream.closed)


async def test_a_forward_closes_when_its_target_ended_first(local_box: LocalBox) -> None:
    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 ready")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server, asyncio.timeout(30):
        port = server.sockets[0].getsockname()[1]
        stream = await (await local_box.tunnel()).dial("127.0.0.1", port)
        received = b""
        while block := await stream.read():
            received += block
        assert received == b"220 ready"
        stream.write_eof()
        await until(lambda: stream.closed)


async def test_names_are_resolved_in_the_box(local_box: LocalBox) -> None:
    async with echo_server() as port:
        (await (await local_box.tunnel()).dial("localhost", port)).close()


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("127.0.0.1", "connection refused"),
        ("localhost", "connection refused"),
        ("no-such-name.invalid", ""),
        ("", "no such address"),
        ("a\0b", "no such address"),
        ("x" * 300, ""),
        (".." * 10, ""),
    ],
)
async def test_failed_forwards_name_the_target(local_box: LocalBox, host: str, reason: str) -> None:
    tunnel = await local_box.tunnel()
    port = closed_port()
    with pytest.raises(NothingListening) as failure:
        await tunnel.dial(host, port)
    assert str(failure.value).startswith(f"dial {host}:{port}: ")
    assert str(failure.value).endswith(reason)
    assert not tunnel.closed
    assert (await local_box.run("echo on")).stdout == b"on\n"


@pytest.mark.parametrize("port", [0, 65536, 2**31])
async def test_impossible_ports(local_box: LocalBox, port: int) -> None:
    tunnel = await local_box.tunnel()
    with pytest.raises(NothingListening, match=f"dial 127.0.0.1:{port}: no such address"):
        await tunnel.dial("127.0.0.1", port)
    assert not tunnel.closed


async def test_unix_sockets(local_box: LocalBox) -> None:
    path = local_box.root / "echo.sock"
    connection = (await local_box.tunnel()).connection
    server = await asyncio.start_unix_server(_echo, str(path))
    try:
        reader, writer = await connection.open_unix_connection(str(path), encoding=None)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.close()
        await writer.wait_closed()
    finally:
        server.close()
        await server.wait_closed()
    path.unlink(missing_ok=True)
    for bad in (str(path), "relative", "/no\0thing", ""):
        with pytest.raises(asyncssh.ChannelOpenError, match="dial"):
            await connection.open_unix_connection(bad)
    assert (await local_box.run("echo on")).stdout == b"on\n"


async def test_agent_sockets_only_in_their_directory(local_box: LocalBox) -> None:
    tunnel = await local_box.tunnel()
    agent = local_box.root / "client-agent.sock"
    server = await asyncio.start_unix_server(_echo, str(agent))
    directory = tunnel.hello.forward_dir
    try:
        listener = await tunnel.connection.forward_remote_path(f"{directory}/agent.1", str(agent))
        assert stat.S_IMODE(Path(directory).stat().st_mode) == 0o700
        done = await local_box.run(
            'python3 -c "import os,socket;s=socket.socket(socket.AF_UNIX);'
            "s.connect(os.environ['SSH_AUTH_SOCK']);s.sendall(b'ping');print(s.recv(4))\"",
            env={"SSH_AUTH_SOCK": f"{directory}/agent.1"},
        )
        assert done.stdout == b"b'ping'\n", done.stderr
        listener.close()
        await listener.wait_closed()
        await until(lambda: not Path(f"{directory}/agent.1").exists())
        for bad in ("/tmp/agent", f"{directory}/../x", f"{directory}/a/b", "agent", directory):
            with pytest.raises(asyncssh.ChannelListenError):
                await tunnel.connection.forward_remote_path(bad, str(agent))
        assert not tunnel.closed
    finally:
        server.close()
        await server.wait_closed()


async def test_ports_are_not_forwarded_back(local_box: LocalBox) -> None:
    tunnel = await local_box.tunnel()
    with pytest.raises(asyncssh.ChannelListenError):
        await tunnel.connection.forward_remote_port("127.0.0.1", 0, "127.0.0.1", 1)
    assert not tunnel.closed
