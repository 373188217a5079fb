"""Who may come through a tunnel, what a hostile agent can do to it, and how it comes back."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING

import asyncssh
import pytest

from box_guest import protocol
from boxd.errors import Unavailable
from boxd.tunnel.channel import ExitStatus
from boxd.tunnel.listener import MAX_PENDING
from boxd.tunnel.registry import TunnelRegistry, new_identity
from tests.harness.agents.agent import BOX_ID, LocalBox, local_agent
from tests.harness.agents.impostor import GREETING, HELLO, agent_with, host_key
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def quiet_box() -> AsyncIterator[LocalBox]:
    """A box whose agent is not started; tests play the agent themselves."""
    async with local_agent() as box:
        yield box


async def test_hello_makes_the_box_attachable(quiet_box: LocalBox) -> None:
    waiting = asyncio.create_task(quiet_box.tunnel())
    async with agent_with(quiet_box, host_key(quiet_box), [GREETING]):
        tunnel = await waiting
        assert tunnel.hello.boot == "x"
        assert tunnel.hello.forward_dir == "/run/f"
        assert quiet_box.registry.peek(BOX_ID) is tunnel
    await until(lambda: quiet_box.registry.peek(BOX_ID) is None)


async def test_no_hello_no_tunnel(quiet_box: LocalBox) -> None:
    async with agent_with(quiet_box, host_key(quiet_box), []):
        with pytest.raises(Unavailable, match="did not connect within 0 s"):
            await quiet_box.registry.get(BOX_ID, 0.3)


async def test_wrong_host_key_is_refused(quiet_box: LocalBox) -> None:
    foreign, _ = new_identity()
    with pytest.raises((asyncssh.Error, OSError)):
        async with agent_with(quiet_box, foreign, [GREETING]):
            pytest.fail("the daemon logged in to a foreign key")
    with pytest.raises(Unavailable):
        await quiet_box.registry.get(BOX_ID, 0.2)
    # The right one still comes through.
    await quiet_box.start()
    assert (await quiet_box.run("echo right")).stdout == b"right\n"


async def test_key_of_another_box_is_refused(quiet_box: LocalBox) -> None:
    other_private, other_public = new_identity()
    (quiet_box.root / "other").mkdir()
    quiet_box.directories["c1" * 16] = quiet_box.root / "other"
    await quiet_box.registry.open("c1" * 16, other_public)
    with pytest.raises((asyncssh.Error, OSError)):
        async with agent_with(quiet_box, other_private, [GREETING]):
            pytest.fail("the key of another box was taken")
    with pytest.raises(Unavailable):
        await quiet_box.registry.get("c1" * 16, 0.2)


async def test_second_tunnel_replaces_the_first(local_box: LocalBox) -> None:
    first = await local_box.tunnel()
    running = await first.start("sleep 600")
    async with agent_with(local_box, host_key(local_box), [GREETING]):
        await until(lambda: local_box.registry.peek(BOX_ID) not in (None, first))
        await until(lambda: first.closed)
        with pytest.raises(Unavailable):
            await running.wait()


async def test_agent_refuses_other_daemons(quiet_box: LocalBox) -> None:
    foreign, _ = new_identity()
    (quiet_box.root / "foreign").write_bytes(foreign)
    await quiet_box.registry.close_all()

    async def nothing(box_id: str, verb: str, params: dict[str, object]) -> dict[str, object]:
        return {}

    impostor = TunnelRegistry(quiet_box.root / "foreign", quiet_box.bind, nothing)
    await impostor.open(BOX_ID, quiet_box.public)
    try:
        await quiet_box.start()
        with pytest.raises(Unavailable):
            await impostor.get(BOX_ID, 2)
    finally:
        await impostor.close_all()


async def test_agent_comes_back_after_the_listener(local_box: LocalBox) -> None:
    before = (await local_box.tunnel()).hello
    await local_box.registry.close_all()
    with pytest.raises(Unavailable, match="not running"):
        await local_box.tunnel()
    await local_box.open()
    after = (await local_box.tunnel()).hello
    assert (after.boot, after.generation) == (before.boot, before.generation + 1)
    assert (await local_box.run("exit 6")).status == ExitStatus(6, None)


async def test_agent_comes_back_after_a_cut(local_box: LocalBox) -> None:
    for round_ in range(1, 6):
        tunnel = await local_box.tunnel()
        assert tunnel.hello.generation == round_
        tunnel.connection.abort()
        await tunnel.connection.wait_closed()
    assert (await local_box.run("echo back")).stdout == b"back\n"


async def test_waiters_learn_that_the_box_is_gone(quiet_box: LocalBox) -> None:
    waiting = asyncio.create_task(quiet_box.tunnel())
    await asyncio.sleep(0)
    await quiet_box.registry.close(BOX_ID)
    with pytest.raises(Unavailable, match="stopped"):
        await waiting


@pytest.mark.parametrize(
    "lines",
    [
        [b"garbage\n"],
        [b"{}\n"],
        [b"[1]\n"],
        [b'{"type": 1}\n'],
        [b"\xff\xfe\n"],
        [b"[" * 60000 + b"\n"],
        [b"x" * (protocol.MAX_LINE + 2)],
        [b'{"type": "workspace", "id": 1, "verb": "mount"}\n'],
        [json.dumps({**HELLO, "version": 999}).encode() + b"\n"],
        [json.dumps({**HELLO, "boot": 1}).encode() + b"\n"],
        [json.dumps({**HELLO, "boot": "x" * 1000}).encode() + b"\n"],
        [GREETING, GREETING],
        [GREETING, b'{"type": "workspace", "id": "1", "verb": "mount"}\n'],
        [GREETING, b'{"type": "workspace", "id": 1, "verb": "format"}\n'],
        [GREETING, b'{"type": "workspace", "id": 1, "verb": ["mount"]}\n'],
        [GREETING, b'{"type": "workspace", "id": 1, "verb": "mount"}\n' * 100],
    ],
    ids=lambda lines: repr(b"".join(lines)[-40:]),
)
async def test_hostile_lines_end_their_tunnel_only(
    quiet_box: LocalBox, lines: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "boxd.tunnel.registry")
    async with local_agent() as other:
        await other.start()
        neighbour = await other.tunnel()
        async with agent_with(quiet_box, host_key(quiet_box), lines) as (connection, _):
            async with asyncio.timeout(10):
                await connection.wait_closed()
        await until(lambda: quiet_box.registry.peek(BOX_ID) is None)
        assert not neighbour.closed
        assert (await other.run("echo here")).stdout == b"here\n"
    # A well-behaved agent of the same box is welcome afterwards.
    async with agent_with(quiet_box, host_key(quiet_box), [GREETING]):
        await quiet_box.tunnel()


async def test_unknown_messages_are_ignored(quiet_box: LocalBox) -> None:
    lines = [GREETING, b'{"type": "of_a_later_version", "id": 1}\n']
    async with agent_with(quiet_box, host_key(quiet_box), lines):
        assert not (await quiet_box.tunnel()).closed


async def test_requests_are_answered(quiet_box: LocalBox) -> None:
    request = b'{"type": "workspace", "id": 7, "verb": "info"}\n'
    key = host_key(quiet_box)
    async with agent_with(quiet_box, key, [GREETING, request]) as (_, control):
        await until(lambda: control.received.endswith(b"\n"))
        assert json.loads(control.received) == {
            "type": "reply",
            "id": 7,
            "ok": True,
            "result": {"path": "/wrk", "verb": "info"},
        }
    assert quiet_box.requests == [(BOX_ID, "workspace", {"verb": "info"})]


async def test_idle_connections_do_not_pile_up(quiet_box: LocalBox) -> None:
    path = str(quiet_box.run_dir / protocol.TUNNEL_SOCKET)
    streams = [await asyncio.open_unix_connection(path) for _ in range(MAX_PENDING + 3)]
    try:
        # The surplus is closed at once, without a greeting.
        async with asyncio.timeout(5):
            greetings = await asyncio.gather(
                *(reader.readline() for reader, _ in streams), return_exceptions=True
            )
        assert sum(isinstance(one, bytes) and one != b"" for one in greetings) == MAX_PENDING
    finally:
        for _, writer in streams:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    async with agent_with(quiet_box, host_key(quiet_box), [GREETING]):
        await quiet_box.tunnel()


async def test_long_paths_work(quiet_box: LocalBox) -> None:
    directory = quiet_box.root / ("d" * 100) / ("e" * 100)
    directory.mkdir(parents=True)
    quiet_box.directories["d2" * 16] = directory
    await quiet_box.registry.open("d2" * 16, quiet_box.public)
    assert (directory / protocol.TUNNEL_SOCKET).is_socket()
