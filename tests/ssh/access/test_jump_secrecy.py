"""What the front door can see of a confidential box, and what it can make the box do: nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import asyncssh
import pytest
from asyncssh.connection import SSHConnection
from asyncssh.packet import SSHPacketHandler

from box_guest import protocol
from box_guest.shared.algorithms import MACS, RELAY_MACS
from boxd.boxes.state.requests import BoxAccess
from boxd.principal import Principal
from tests.harness.memory import times_in_memory
from tests.harness.ssh.audit import POLICY, audit, check_strict
from tests.harness.ssh.door_process import door_process
from tests.harness.ssh.openssh import HOST, kill, run, running
from tests.harness.ssh.unread import (
    MIB,
    counting,
    read_nothing,
    rss,
    run_unread,
    until_it_stands,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable
    from pathlib import Path

    from asyncssh.packet import SSHPacket, SSHPacketLogger

    from tests.harness.ssh.frontdoor import Entrance

MARKER = b"never-seen-by-the-door-9f0c1e7a\n"


@pytest.fixture
def marked(tmp_path: Path) -> Path:
    """A file of 1 MiB that says one thing."""
    path = tmp_path / "marked"
    path.write_bytes(MARKER * (MIB // len(MARKER)))
    return path


def scp(options: list[str], source: str, target: str) -> list[str]:
    """A copy."""
    return ["scp", "-q", *options, source, target]


# --- what it sees -----------------------------------------------------------------------


async def test_a_marker_is_never_in_the_memory_of_the_door(marked: Path, tmp_path: Path) -> None:
    """While it is on its way, both ways, and afterwards. A box of the usual kind shows that one
    who looks there would find it."""
    async with door_process() as door:
        client, pid = door.client, door.process.pid
        usual = [*client.options(), "-o", "User=usual"]
        for options, host, ssh in (
            (client.hop(), "hidden", client.jump("hidden", f"cat {marked} {marked} {marked}")),
            (usual, HOST, client.ssh("usual", f"cat {marked} {marked} {marked}")),
        ):
            seen = times_in_memory(pid, MARKER)
            assert seen == 0
            for mode in ("-O", "-s"):
                there, back = tmp_path / f"there{mode}", tmp_path / f"back{mode}"
                up = await run(scp([*options, mode], str(marked), f"{host}:{there}"))
                down = await run(scp([*options, mode], f"{host}:{there}", str(back)))
                assert (up.status, down.status) == (0, 0)
                assert back.read_bytes() == marked.read_bytes()
                seen += times_in_memory(pid, MARKER)
            # Nobody reads: what the door has in its hands stays there.
            async with running(ssh) as process:
                assert process.stdout is not None
                assert await process.stdout.readexactly(len(MARKER)) == MARKER
                seen += times_in_memory(pid, MARKER)
                kill(process)
            assert (seen > 0) == (options is usual)


async def test_nothing_that_the_door_opens_or_seals_holds_the_marker(
    front_door: Entrance, marked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every message of the door, on either of its hops, as it is outside of that hop's cipher."""
    counts: Counter[str] = Counter()
    process, send = SSHPacketHandler.process_packet, SSHConnection.send_packet

    def processed(
        self: SSHPacketHandler, pkttype: int, pktid: int, packet: SSHPacket
    ) -> bool | Awaitable[None]:
        counts["bytes"] += len(packet.get_full_payload())
        counts["marks"] += MARKER[:-1] in packet.get_full_payload()
        return process(self, pkttype, pktid, packet)

    def sent(
        self: SSHConnection, pkttype: int, *args: bytes, handler: SSHPacketLogger | None = None
    ) -> None:
        counts["bytes"] += sum(map(len, args))
        counts["marks"] += any(MARKER[:-1] in data for data in args)
        send(self, pkttype, *args, handler=handler)

    monkeypatch.setattr(SSHPacketHandler, "process_packet", processed)
    monkeypatch.setattr(SSHConnection, "send_packet", sent)
    client = front_door.client
    usual = [*client.options(), "-o", "User=usual"]
    for options, host in ((client.hop(), "hidden"), (usual, HOST)):
        counts.clear()
        for mode in ("-O", "-s"):
            there = tmp_path / f"there{mode}"
            up = await run(scp([*options, mode], str(marked), f"{host}:{there}"))
            down = await run(scp([*options, mode], f"{host}:{there}", str(tmp_path / "back")))
            assert (up.status, down.status) == (0, 0)
        assert counts["bytes"] > 8 * MIB
        assert (counts["marks"] > 0) == (options is usual)


# --- what it can make the box do ----------------------------------------------------------


async def test_the_agent_serves_the_daemon_nothing_but_the_relay(front_door: Entrance) -> None:
    client = front_door.client
    assert (await run(client.jump("web", "true"))).status == 0
    (box,) = await front_door.store.all_boxes()
    owner = Principal(box.owner, None, "ssh_key")
    held = front_door.operations.boxes.attach(
        owner, BoxAccess("web", kind="reference", why="test", relay=box.relay_key)
    )
    async with held as attachment:
        tunnel = attachment.tunnel.connection
        for options in (
            *({"command": "id"}, {}, {"request_pty": True}),
            *({"subsystem": "sftp"}, {"subsystem": protocol.HANDOVER_SUBSYSTEM}),
        ):
            with pytest.raises(asyncssh.ChannelOpenError):
                await tunnel.create_session(asyncssh.SSHClientSession, **options)
        with pytest.raises(asyncssh.ChannelOpenError):
            # There is one control channel, and it is taken.
            await tunnel.create_session(
                asyncssh.SSHClientSession, subsystem=protocol.CONTROL_SUBSYSTEM
            )
        for host in (HOST, "localhost", "BOX-RELAY", "box-relay."):
            with pytest.raises(asyncssh.ChannelOpenError, match="the box is confidential"):
                await tunnel.open_connection(host, front_door.door.port)
        with pytest.raises(asyncssh.ChannelOpenError, match="the box is confidential"):
            await tunnel.open_unix_connection("/run/box-guest.sock")
        with pytest.raises(asyncssh.ChannelListenError):
            await tunnel.forward_remote_path(
                f"{attachment.tunnel.hello.forward_dir}/agent.1", "/nothing"
            )
        # And goes on serving its owner.
        assert (await run(client.jump("web", "echo ok"))).text == "ok\n"


async def test_a_usual_box_is_not_dialled_by_the_name_of_the_relay(front_door: Entrance) -> None:
    client = front_door.client
    client.log_level = "INFO"
    done = await client.shell("web", "-W", "box-relay:22")
    assert "dial box-relay:22: no such address" in done.errors


# --- what it is itself --------------------------------------------------------------------


@asynccontextmanager
async def at_a_port(command: list[str]) -> AsyncIterator[int]:
    """A port on which each connection is one run of a command."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with running(command) as process:
            assert process.stdin is not None
            assert process.stdout is not None

            async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
                with suppress(OSError):
                    while data := await source.read(1 << 16):
                        sink.write(data)
                        await sink.drain()
                sink.close()

            await asyncio.gather(pump(reader, process.stdin), pump(process.stdout, writer))

    server = await asyncio.start_server(carry, HOST, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.promise("S5")
async def test_the_relay_passes_the_policy_less_one_mac_and_is_strict(
    front_door: Entrance, tmp_path: Path
) -> None:
    client = front_door.client
    listed = POLICY.read_text()
    policy = tmp_path / "policy"
    policy.write_text(
        listed.replace(f"macs = {', '.join(MACS)}", f"macs = {', '.join(RELAY_MACS)}")
    )
    assert policy.read_text() != listed
    command = ["ssh", *client.options(), "-l", "jump", "-W", "web:22", HOST]
    async with at_a_port(command) as port:
        done = await audit(port, "-P", str(policy))
        await check_strict(port)
    assert done.status == 0, done.text


async def test_strangers_to_the_box_are_sent_away_after_six_keys(front_door: Entrance) -> None:
    client = front_door.client
    keys = [str(client.make_key(f"wrong{number}", "-t", "ed25519")) for number in range(8)]
    async with client.second("jump") as door:
        with pytest.raises(asyncssh.DisconnectError, match="too many authentication failures"):
            await door.connect_ssh(
                "web", username="root", client_keys=keys, known_hosts=None, config=None
            )
        own = {"client_keys": [str(client.key)], "known_hosts": None, "config": None}
        async with door.connect_ssh("web", username="anybody", **own) as box:
            assert (await box.run("echo ok")).stdout == "ok\n"


async def test_a_client_that_does_not_read_does_not_fill_the_agent(
    front_door: Entrance, tmp_path: Path
) -> None:
    client = front_door.client
    size, progress = 64 * MIB, tmp_path / "progress"
    async with client.second("jump") as door:
        inner = await door.connect_ssh(
            "web", username="root", client_keys=[str(client.key)], known_hosts=None, config=None
        )
        (box,) = await front_door.store.all_boxes()
        agent = front_door.backend.pid(box.id)
        before = rss(agent)
        await run_unread(inner, counting(progress, size))
        read_nothing(door)
        await until_it_stands(progress, size)
        assert rss(agent) - before < 24 * MIB
        inner.abort()
        await inner.wait_closed()
