"""Paramiko, a client of another make: commands, terminals, files, refusals, new keys.

It blocks, so it works in a thread beside the front door's loop.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import paramiko
import pytest

from tests.harness.mounts.drive import until
from tests.harness.ssh.forwards import free_port, shout
from tests.harness.ssh.openssh import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.harness.ssh.frontdoor import Entrance
    from tests.plugins.strict_logs import AssertLogs

    T = TypeVar("T")

MIB = 1 << 20
PATIENCE_S = 60.0
CONNECT_FAILED = 2
"""SSH_OPEN_CONNECT_FAILED."""


@contextmanager
def connected(front_door: Entrance) -> Iterator[paramiko.SSHClient]:
    """A connection to box `web`; the host key is the expected one or there is none."""
    user = front_door.client
    client = paramiko.SSHClient()
    client.load_host_keys(str(user.directory / "known_hosts"))
    client.connect(
        HOST,
        front_door.door.port,
        username="web",
        key_filename=str(user.key),
        allow_agent=False,
        look_for_keys=False,
        timeout=PATIENCE_S,
    )
    try:
        yield client
    finally:
        client.close()


def transport_of(client: paramiko.SSHClient) -> paramiko.Transport:
    """What carries the channels."""
    transport = client.get_transport()
    assert transport is not None
    return transport


async def by_paramiko(front_door: Entrance, work: Callable[[paramiko.SSHClient], T]) -> T:
    """What `work` does with a connection."""

    def blocking() -> T:
        with connected(front_door) as client:
            return work(client)

    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.to_thread(blocking)


def run(client: paramiko.SSHClient, command: str, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    """Status, stdout and stderr of a command."""
    into, out, errors = client.exec_command(command, timeout=PATIENCE_S)
    into.write(stdin)
    into.channel.shutdown_write()
    return out.channel.recv_exit_status(), out.read(), errors.read()


async def test_paramiko_gets_both_streams_and_the_status(front_door: Entrance) -> None:
    def work(client: paramiko.SSHClient) -> None:
        assert run(client, "cat; echo err >&2; exit 3", b"in\n") == (3, b"in\n", b"err\n")
        status, out, _ = run(client, "sha256sum; kill -TERM $$", bytes(MIB))
        assert status == -1, "ended by a signal, which paramiko has no number for"
        assert out.startswith(b"30e14955ebf1352266dc2ff8067e68104607e750abb9d3b36582b8af909fcb58")

    await by_paramiko(front_door, work)


async def test_paramiko_has_a_terminal_that_it_resizes(front_door: Entrance) -> None:
    def work(client: paramiko.SSHClient) -> None:
        with client.invoke_shell("xterm", width=90, height=30) as shell:
            shell.settimeout(PATIENCE_S)
            shell.sendall(b"PS1=; stty size; echo T=$TERM\n")
            expect(shell, b"30 90\r\nT=xterm\r\n")
            shell.resize_pty(132, 43)
            shell.sendall(b'until [ "$(stty size)" = "43 132" ]; do sleep 0.02; done; exit 7\n')
            assert shell.recv_exit_status() == 7

    await by_paramiko(front_door, work)


def expect(shell: paramiko.Channel, text: bytes) -> None:
    """Waits until it is shown."""
    seen = b""
    while text not in seen:
        data = shell.recv(65536)
        assert data, seen
        seen += data


async def test_paramiko_moves_files(front_door: Entrance, tmp_path: Path) -> None:
    data = os.urandom(2 * MIB + 1)
    (tmp_path / "data").write_bytes(data)

    def work(client: paramiko.SSHClient) -> None:
        with client.open_sftp() as files:
            files.chdir(str(tmp_path))
            assert files.put(str(tmp_path / "data"), "there").st_size == len(data)
            files.get("there", str(tmp_path / "back"))
            with files.open("there", "r+b") as file:
                file.seek(MIB)
                file.write(b"changed")
                file.prefetch()
                file.seek(0)
                assert file.read() == data[:MIB] + b"changed" + data[MIB + 7 :]
                file.truncate(10)
                assert file.stat().st_size == 10
            files.mkdir("folder", 0o700)
            files.posix_rename("there", "folder/moved")
            files.symlink("moved", "folder/link")
            files.chmod("folder/moved", 0o640)
            files.utime("folder/moved", (10**9, 10**9))
            assert sorted(files.listdir("folder")) == ["link", "moved"]
            assert files.readlink("folder/link") == "moved"
            with pytest.raises(FileNotFoundError):
                files.stat("missing")
            with pytest.raises(OSError, match="not empty"):
                files.rmdir("folder")

    await by_paramiko(front_door, work)
    assert (tmp_path / "back").read_bytes() == data
    moved = (tmp_path / "folder" / "moved").stat()
    assert (moved.st_size, moved.st_mode & 0o777, moved.st_mtime) == (10, 0o640, 10**9)


def closed(channel: paramiko.Channel) -> None:
    """Wait until both sides have closed a channel."""
    until(lambda: channel.closed)


async def test_paramiko_makes_new_keys_amid_two_channels(front_door: Entrance) -> None:
    """One of them is not read meanwhile."""

    def work(client: paramiko.SSHClient) -> None:
        transport = transport_of(client)
        _, unread, _ = client.exec_command(f"head -c {4 * MIB} /dev/zero")
        data = os.urandom(MIB)
        for _ in range(3):
            transport.renegotiate_keys()
            into, out, _ = client.exec_command("cat", timeout=PATIENCE_S)
            into.write(data)
            into.channel.shutdown_write()
            assert out.read() == data
            # Paramiko answers the end of a channel in the thread that reads. During a key exchange,
            # that thread would wait for itself.
            closed(out.channel)
        assert len(unread.read()) == 4 * MIB
        assert unread.channel.recv_exit_status() == 0

    await by_paramiko(front_door, work)


async def test_paramiko_is_refused_with_reasons_and_goes_on(
    front_door: Entrance, assert_logs: AssertLogs
) -> None:
    closed = free_port()

    def work(client: paramiko.SSHClient) -> None:
        transport = transport_of(client)
        with pytest.raises(paramiko.SSHException, match="denied"):
            transport.request_port_forward(HOST, 0)
        with pytest.raises(paramiko.ChannelException) as refused:
            transport.open_channel("direct-tcpip", (HOST, closed), (HOST, 1))
        assert refused.value.code == CONNECT_FAILED
        with pytest.raises(paramiko.ChannelException):
            transport.open_channel("never-heard-of")
        with pytest.raises(paramiko.SSHException), transport.open_session() as channel:
            channel.invoke_subsystem("never-heard-of")
        assert run(client, "echo here") == (0, b"here\n", b"")

    with (
        assert_logs(f"paramiko.*FAILED: dial {HOST}:{closed}: connection refused"),
        assert_logs("paramiko.*FAILED: Unknown channel type"),
    ):
        await by_paramiko(front_door, work)


async def test_paramiko_reaches_a_port_of_the_box(front_door: Entrance) -> None:
    server = await asyncio.start_server(shout, HOST, 0)
    port: int = server.sockets[0].getsockname()[1]

    def work(client: paramiko.SSHClient) -> None:
        with transport_of(client).open_channel("direct-tcpip", (HOST, port), (HOST, 1)) as channel:
            channel.settimeout(PATIENCE_S)
            channel.sendall(b"hello")
            channel.shutdown_write()
            expect(channel, b"HELLO!")
            assert channel.recv(1) == b""

    async with server:
        await by_paramiko(front_door, work)
