"""Forwarding through the front door: the box dials; refusals are told and harm nothing."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from tests.harness.ssh.forwards import check_intact, free_port, shout, talk
from tests.harness.ssh.openssh import HOST, end_input, listens, running
from tests.harness.ssh.unread import STAND_S
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.harness.ssh.frontdoor import Entrance

MIB = 1024 * 1024


@asynccontextmanager
async def forwarding(
    front_door: Entrance, path: Path, target: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A session with `-L path:target`; its `cat` echoes as long as the session is intact."""
    front_door.client.log_level = "INFO"  # the level at which OpenSSH shows a refusal
    command = front_door.client.ssh("web", "-L", f"{path}:{target}", "cat")
    async with running(command) as process:
        await until(lambda: listens(path))
        yield process
        await check_intact(process)
        await end_input(process)


async def test_a_port_is_reached_with_both_ends_of_input(
    front_door: Entrance, tmp_path: Path
) -> None:
    server = await asyncio.start_server(shout, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    async with server, forwarding(front_door, tmp_path / "l", f"{HOST}:{port}"):
        assert await talk(tmp_path / "l", b"hello") == b"HELLO!"
        assert await talk(tmp_path / "l", b"x" * 4 * MIB) == b"X" * 4 * MIB + b"!"


async def test_a_unix_socket_is_reached(front_door: Entrance, tmp_path: Path) -> None:
    target = front_door.client.directory / "target"
    server = await asyncio.start_unix_server(shout, str(target))
    async with server, forwarding(front_door, tmp_path / "l", str(target)):
        assert await talk(tmp_path / "l", b"hello") == b"HELLO!"


async def test_a_target_that_speaks_first_is_heard(front_door: Entrance, tmp_path: Path) -> None:
    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 ready\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(greet, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    async with server, forwarding(front_door, tmp_path / "l", f"{HOST}:{port}"):
        for _ in range(20):
            assert await talk(tmp_path / "l", b"") == b"220 ready\n"


async def test_a_closed_port_is_named_and_the_session_stays(
    front_door: Entrance, tmp_path: Path
) -> None:
    port = free_port()
    async with forwarding(front_door, tmp_path / "l", f"{HOST}:{port}") as process:
        assert await talk(tmp_path / "l", b"") == b""
        assert process.stderr is not None
        async with asyncio.timeout(30):
            text = (await process.stderr.readline()).decode()
        assert f"{HOST}:{port}" in text
        assert "refused" in text


async def test_a_missing_socket_is_named_and_the_session_stays(
    front_door: Entrance, tmp_path: Path
) -> None:
    async with forwarding(front_door, tmp_path / "l", "/nowhere/socket") as process:
        assert await talk(tmp_path / "l", b"") == b""
        assert process.stderr is not None
        async with asyncio.timeout(30):
            assert b"/nowhere/socket" in await process.stderr.readline()


async def test_standard_input_and_output_forward_alone(front_door: Entrance) -> None:
    server = await asyncio.start_server(shout, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    command = ["ssh", *front_door.client.options(), "-l", "web", "-W", f"{HOST}:{port}", HOST]
    async with server, running(command) as process, asyncio.timeout(30):
        stdout, _ = await process.communicate(b"hello")
        assert stdout == b"HELLO!"
    await _until_nothing_is_held(front_door)


async def test_a_client_that_leaves_while_its_target_does_not_read_harms_nothing(
    front_door: Entrance, tmp_path: Path
) -> None:
    reading, got = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reading.wait()
        got.set_result(len(await reader.read()))
        writer.close()

    target = front_door.client.directory / "target"
    sent = MIB * 9 // 4  # more than stands on the way, and less than with the client's window
    async with await asyncio.start_unix_server(late, str(target)):
        async with front_door.client.second("web") as connection:
            _, writer = await connection.open_unix_connection(str(target))
            writer.write(bytes(sent))
            writer.write_eof()
            await until(lambda: not writer.channel.get_write_buffer_size())
            await asyncio.sleep(STAND_S)
        reading.set()
        async with asyncio.timeout(60):
            assert 0 < await got < sent
    await _until_nothing_is_held(front_door)


async def _greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Speaks and closes without reading."""
    writer.write(b"220 ready\n")
    writer.close()
    await writer.wait_closed()


def _forward_alone(front_door: Entrance, port: int) -> list[str]:
    return ["ssh", *front_door.client.options(), "-l", "web", "-W", f"{HOST}:{port}", HOST]


async def test_a_forwarding_alone_ends_when_its_target_closes_first(front_door: Entrance) -> None:
    server = await asyncio.start_server(_greet, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    async with server, running(_forward_alone(front_door, port)) as process:
        async with asyncio.timeout(30):
            stdout, _ = await process.communicate(b"")
        assert (process.returncode, stdout) == (0, b"220 ready\n")
    await _until_nothing_is_held(front_door)


async def test_input_that_is_held_open_ends_a_forwarding_after_its_target(
    front_door: Entrance,
) -> None:
    server = await asyncio.start_server(_greet, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    async with server, running(_forward_alone(front_door, port)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b"220 ready\n"
            assert await process.stdout.read() == b""
            process.stdin.close()
            assert await process.wait() == 0
    await _until_nothing_is_held(front_door)


async def test_reverse_forwarding_is_refused_and_the_session_stays(front_door: Entrance) -> None:
    client = front_door.client
    refused = ["-R", f"0:{HOST}:1", "-R", f"/tmp/never-made:{HOST}:1"]
    done = await client.run("web", *refused, "echo still here; exit 6")
    assert (done.status, done.stdout) == (6, b"still here\n")
    strict = await client.run("web", "-o", "ExitOnForwardFailure=yes", *refused[:2], "echo no")
    assert (strict.status, strict.stdout) == (255, b"")


async def test_a_forwarded_connection_holds_the_box(front_door: Entrance, tmp_path: Path) -> None:
    server = await asyncio.start_server(shout, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    holds = front_door.lifecycle.attachments
    target = f"{HOST}:{port}"
    async with server, forwarding(front_door, tmp_path / "l", target) as process:
        await check_intact(process)
        _, writer = await asyncio.open_unix_connection(str(tmp_path / "l"))
        (box,) = await front_door.store.all_boxes()
        await until(lambda: holds.why(box.id) == {"command": 1, "forward": 1})
        writer.close()
        await writer.wait_closed()
        await until(lambda: holds.why(box.id) == {"command": 1})


@pytest.mark.parametrize(
    ("user", "says"),
    [
        ("cli", b"this user name has no box to forward to"),
        ("svcs_" + "0" * 32, b"this share link is not valid or has expired"),
        ("we_b", b"'we_b' is not valid"),
    ],
)
async def test_users_without_a_box_forward_nothing(
    front_door: Entrance, user: str, says: bytes
) -> None:
    front_door.client.log_level = "INFO"
    command = ["ssh", *front_door.client.options(), "-l", user, "-W", f"{HOST}:1", HOST]
    async with running(command) as process, asyncio.timeout(30):
        _, stderr = await process.communicate()
        assert process.returncode == 255
        assert says in stderr
        assert b"forwarding failed" in stderr
    assert await front_door.store.all_boxes() == []


async def _until_nothing_is_held(front_door: Entrance) -> None:
    (box,) = await front_door.store.all_boxes()
    await until(lambda: front_door.lifecycle.attachments.count(box.id) == 0)
