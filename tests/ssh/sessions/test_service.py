"""The front door as a service: agent forwarding, closing, taken ports, what goes wrong inside."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from box_guest.shared.algorithms import CIPHERS, KEX, MACS
from boxd.config import Address
from boxd.errors import Unavailable
from boxd.ssh.connection.listener import SshListener
from boxd.ssh.connection.listener_state import ListenerSettings
from tests.harness.logs import provoked
from tests.harness.ssh.forwards import check_intact
from tests.harness.ssh.key_agent import ssh_agent
from tests.harness.ssh.openssh import HOST, Client, Done, end_input, run, running
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.harness.ssh.frontdoor import Entrance


async def test_the_clients_agent_is_reached_from_its_session_only(front_door: Entrance) -> None:
    client = front_door.client
    extra = client.make_key("extra", "-t", "ed25519")
    agent = client.directory / "agent"
    listed = (await run(["ssh-keygen", "-l", "-f", str(extra)])).text.split()[1]
    async with ssh_agent(agent, extra):
        command = client.ssh("web", "-A", "ssh-add -l; ls -d $SSH_AUTH_SOCK")
        use = f"IdentityAgent={agent}"
        done = await run([use if word == "IdentityAgent=none" else word for word in command])
        assert listed in done.text
        socket_path = done.text.splitlines()[-1]
        without = await client.run("web", 'echo "[$SSH_AUTH_SOCK]"')
        assert without.text == "[]\n"
        gone = await client.run(
            "web",
            f"n=0; while [ -e {socket_path} ] && [ $n -lt 500 ];"
            f" do n=$((n+1)); sleep 0.02; done; test -e {socket_path}",
        )
        assert gone.status == 1


async def test_only_the_listed_algorithms_are_offered(front_door: Entrance) -> None:
    reader, writer = await asyncio.open_connection(HOST, front_door.door.port)
    writer.write(b"SSH-2.0-test\r\n")
    banner = await reader.readline()
    assert banner == b"SSH-2.0-OpenSSH_boxd\r\n"
    length = int.from_bytes(await reader.readexactly(4), "big")
    payload = (await reader.readexactly(length))[1:]
    writer.close()
    await writer.wait_closed()
    lists, at = [], 17
    for _ in range(8):
        size = int.from_bytes(payload[at : at + 4], "big")
        lists.append(payload[at + 4 : at + 4 + size].decode().split(","))
        at += 4 + size
    kex, host_keys, out_ciphers, in_ciphers, out_macs, in_macs, out_comp, in_comp = lists
    assert [name for name in kex if not name.startswith(("ext-info", "kex-strict"))] == list(KEX)
    assert "kex-strict-s-v00@openssh.com" in kex
    assert host_keys == ["ssh-ed25519"]
    assert out_ciphers == in_ciphers == list(CIPHERS)
    assert out_macs == in_macs == list(MACS)
    assert out_comp == in_comp == ["none"]


async def test_a_taken_port_is_named_with_the_remedy(front_door: Entrance, tmp_path: Path) -> None:
    second = SshListener(
        front_door.operations, ListenerSettings(Address(HOST, front_door.door.port), tmp_path)
    )
    with pytest.raises(Unavailable, match="--ssh-addr"):
        await second.start()


async def test_closing_lets_commands_finish_and_takes_no_new_ones(front_door: Entrance) -> None:
    client = front_door.client
    async with running(client.ssh("web", "echo up; cat; echo done")) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert await process.stdout.readline() == b"up\n"
        closing = asyncio.create_task(front_door.door.close(drain_s=30))
        await until(lambda: not _listens(front_door))
        assert (await client.run("web", "echo new")).status == 255
        process.stdin.write(b"last words\n")
        process.stdin.close()
        assert await process.stdout.read() == b"last words\ndone\n"
        assert await process.wait() == 0
        await closing


@asynccontextmanager
async def byte_by_byte(port: int) -> AsyncIterator[int]:
    """A port that leads to another; what comes from there is passed on in the smallest pieces."""

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int) -> None:
        try:
            while data := await reader.read(most):
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(0)
        except ConnectionError:
            pass  # either end may reset the connection
        finally:
            writer.close()

    async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await asyncio.open_connection(HOST, port)
        async with asyncio.TaskGroup() as group:
            group.create_task(passed(reader, other_writer, 65536))
            group.create_task(passed(other_reader, writer, 1))

    server = await asyncio.start_server(between, HOST)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_closing_at_once_ends_everything(front_door: Entrance) -> None:
    """And says so, also to a client that reads the end of its channel before anything else."""
    port = front_door.door.port
    async with byte_by_byte(port) as slow:
        command = front_door.client.ssh(
            "web", "-o", f"HostKeyAlias=[{HOST}]:{port}", "echo up; exec sleep 600"
        )
        command = [f"Port={slow}" if word == f"Port={port}" else word for word in command]
        async with running(command) as process:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"up\n"
            await front_door.door.close(drain_s=0)
            async with asyncio.timeout(30):
                assert await process.wait() == 255
            assert process.stderr is not None
            said = await process.stderr.read()
    assert b"the service is stopping; connect again in a moment" in said
    (box,) = await front_door.store.all_boxes()
    assert front_door.lifecycle.attachments.count(box.id) == 0


async def test_an_error_of_ours_ends_its_channel_only(
    front_door: Entrance,
) -> None:
    """The text gives a number that stands in the log, and nothing of the error."""
    client = front_door.client.second("cli", encoding="utf-8")
    async with client as connection:

        async def broken(*_args: object, **_options: object) -> None:
            raise ZeroDivisionError("secret detail")

        vars(front_door.operations.boxes)["list_boxes"] = broken
        with provoked("boxd.ssh.cli.registry") as log:
            done = await connection.run("ls")
        assert done.exit_status == 1
        text = str(done.stderr)
        assert text.startswith("internal error (")
        assert "secret" not in text
        assert text.split("(")[1].rstrip(")\n") in log[0]
        del vars(front_door.operations.boxes)["list_boxes"]
        assert (await connection.run("ls")).exit_status == 0


async def test_an_error_of_ours_ends_one_session_and_not_its_connection(
    front_door: Entrance,
) -> None:
    client = front_door.client

    def broken(*_args: object, **_options: object) -> None:
        raise ZeroDivisionError("secret detail")

    async with client.master("web") as shared, running(client.ssh("web", *shared, "cat")) as other:
        # The other session stands before anything breaks.
        await check_intact(other)
        assert (await client.run("web", *shared, "true")).status == 0
        vars(front_door.operations.boxes)["attach"] = broken
        with provoked("boxd.ssh.connection.session", "boxd.ssh.connection.forward") as log:
            done = await client.run("web", *shared, "true")
            closed = await talk_to_nothing(client, shared)
        del vars(front_door.operations.boxes)["attach"]
        assert done.status == 255
        assert "internal error (" in done.errors
        assert "secret" not in done.errors + closed.errors
        assert ["ZeroDivisionError: " in line for line in log] == [True, True]
        assert (await client.run("web", *shared, "echo ok")).stdout == b"ok\n"
        await end_input(other)


async def talk_to_nothing(client: Client, shared: list[str]) -> Done:
    """A forwarded connection over the shared one."""
    options = [*client.options(), *shared, "-l", "web", "-W", f"{HOST}:1"]
    return await run(["ssh", *options, HOST])


async def test_signals_and_breaks_reach_the_command(front_door: Entrance) -> None:
    """OpenSSH's client sends neither to a command, so the second client does."""
    client = front_door.client.second("web", encoding="utf-8")
    loop = "while :; do sleep 0.02; done"
    async with client as connection, asyncio.timeout(60):
        process = await connection.create_process(f"trap 'echo got; exit 8' USR1; echo up; {loop}")
        assert await process.stdout.readline() == "up\n"
        process.send_signal("USR1")
        assert await process.stdout.readline() == "got\n"
        assert (await process.wait()).exit_status == 8
        process = await connection.create_process("exec sleep 600")
        process.send_signal("TERM")  # comes before the command runs: it is kept for it
        done = await process.wait()
        assert done.exit_signal is not None
        assert done.exit_signal[0] == "TERM"
        script = f"trap 'echo broken; exit 9' INT; stty brkint -ignbrk; echo up; {loop}"
        process = await connection.create_process(script, term_type="xterm")
        assert await process.stdout.readline() == "up\r\n"
        process.send_break(100)
        assert (await process.wait()).exit_status == 9


def _listens(front_door: Entrance) -> bool:
    """Whether the operating system still lists our port as listened on."""
    port = f":{front_door.client.port:04X} "
    with open("/proc/net/tcp") as table:
        return any(port in line and " 0A " in line for line in table)
