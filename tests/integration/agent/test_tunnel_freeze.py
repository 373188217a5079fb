"""The tunnel around a freeze of its box: a real agent that is stopped and goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from box_guest import protocol
from boxd.errors import Unavailable
from boxd.model.presence import Presence
from boxd.tunnel import registry
from boxd.tunnel.channel import ExitStatus
from boxd.tunnel.registry import QUIESCE_S
from tests.harness.agents.agent import BOX_ID, LocalBox, local_agent
from tests.harness.agents.impostor import GREETING, agent_with, host_key
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

CONNECTED = "03"
"""How /proc/net/unix writes the state of a connected socket."""
CLOCK = Path(__file__).parent / "shifted_clock.c"


@pytest.fixture
async def quiet_box() -> AsyncIterator[LocalBox]:
    """A box whose agent is not started."""
    async with local_agent() as box:
        yield box


@pytest.fixture(scope="module")
def shifted_clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that moves a process's clock."""
    library = tmp_path_factory.mktemp("clock") / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(CLOCK), "-ldl"], check=True)
    return library


def pid_of(box: LocalBox) -> int:
    """The agent's process."""
    assert box.process is not None
    return box.process.pid


def connections(box: LocalBox) -> set[str]:
    """Inodes of the connected Unix sockets that the agent holds."""
    table = Path(f"/proc/{pid_of(box)}/net/unix").read_text().splitlines()[1:]
    connected = {line.split()[6] for line in table if line.split()[5] == CONNECTED}
    found = set()
    for entry in Path(f"/proc/{pid_of(box)}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except FileNotFoundError:  # closed since the directory was read
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found & connected


@contextmanager
def frozen(box: LocalBox) -> Iterator[None]:
    """The agent stands still."""
    os.kill(pid_of(box), signal.SIGSTOP)
    try:
        stat = Path(f"/proc/{pid_of(box)}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "T":
            pass
        yield
    finally:
        os.kill(pid_of(box), signal.SIGCONT)


def refused(box: LocalBox) -> bool:
    """Whether nobody listens for the agent."""
    with socket.socket(socket.AF_UNIX) as dialling:
        return dialling.connect_ex(str(box.run_dir / protocol.TUNNEL_SOCKET)) != 0


async def test_the_agent_closes_every_connection(
    quiet_box: LocalBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "QUIESCE_S", 30)
    await quiet_box.registry.close_all()
    await quiet_box.start()
    await until(quiet_box.guest_socket.exists)
    await quiet_box.open()
    tunnel = await quiet_box.tunnel()
    # An agent that has said hello has all its sockets; one that starts still opens some.
    with_tunnel = connections(quiet_box)
    running = await tunnel.start("read line; cat")
    dialled = await tunnel.start("sleep 600")
    assert connections(quiet_box) == with_tunnel
    assert await quiet_box.registry.quiesce(BOX_ID) == Presence()
    # It said so by closing: nothing has to be waited for.
    remaining = connections(quiet_box)
    assert remaining < with_tunnel
    assert len(with_tunnel - remaining) == 1
    assert refused(quiet_box)
    for command in (running, dialled):
        with pytest.raises(Unavailable):
            await command.wait()
    with pytest.raises(Unavailable, match="not running"):
        await quiet_box.tunnel()


async def test_the_tunnel_comes_back_after_the_freeze(local_box: LocalBox) -> None:
    before = (await local_box.tunnel()).hello
    for round_ in range(1, 4):
        await local_box.registry.quiesce(BOX_ID)
        with frozen(local_box):
            await local_box.open()
            assert local_box.registry.peek(BOX_ID) is None
        after = (await local_box.tunnel()).hello
        assert (after.boot, after.generation) == (before.boot, before.generation + round_)
    assert (await local_box.run("exit 7")).status == ExitStatus(7, None)


async def test_a_freeze_that_does_not_come(local_box: LocalBox) -> None:
    await local_box.registry.quiesce(BOX_ID)
    await local_box.open()
    assert (await local_box.run("echo goes on")).stdout == b"goes on\n"


async def test_an_announcement_that_nothing_follows(local_box: LocalBox) -> None:
    tunnel = await local_box.tunnel()
    assert await tunnel.suspend_soon() == Presence()
    await tunnel.connection.wait_closed()
    # The listener is the same one and was never closed: the agent keeps still, but not for ever.
    again = await local_box.tunnel()
    assert again.hello.generation == tunnel.hello.generation + 1


async def test_an_agent_that_does_not_answer_is_cut_off(local_box: LocalBox) -> None:
    tunnel = await local_box.tunnel()
    with frozen(local_box):
        async with asyncio.timeout(QUIESCE_S + 20):
            assert await local_box.registry.quiesce(BOX_ID) is None
        assert tunnel.closed
        assert refused(local_box)
        await local_box.open()
    assert (await local_box.tunnel()).hello.generation == tunnel.hello.generation + 1


async def test_a_box_without_a_tunnel(quiet_box: LocalBox) -> None:
    assert await quiet_box.registry.quiesce(BOX_ID) is None
    assert refused(quiet_box)
    assert await quiet_box.registry.quiesce(BOX_ID) is None
    assert await quiet_box.registry.quiesce("never heard of") is None


async def test_a_connection_that_is_just_being_made(quiet_box: LocalBox) -> None:
    """The agent is stopped in the middle of its dialling, and goes on while it is waited for."""
    await quiet_box.start()
    entry = quiet_box.registry._entries[BOX_ID]
    await until(lambda: bool(entry.listener.connections))
    assert await quiet_box.registry.quiesce(BOX_ID) in (Presence(), None)
    await until(lambda: not entry.listener.connections)
    assert quiet_box.registry.peek(BOX_ID) is None
    assert refused(quiet_box)


@pytest.mark.parametrize(
    ("result", "presence"),
    [
        ({"shells": 2}, Presence(2)),
        ({"shells": 2, "commands": 3}, Presence(2, 3)),
        ({"shells": -7, "commands": -7}, Presence()),
        ({"shells": 10**30, "commands": 10**30}, Presence(999, 999)),
        ({"shells": 1, "commands": "many"}, None),
        ({}, None),
        ({"shells": "many"}, None),
        ({"shells": True}, None),
        ([], None),
    ],
    ids=str,
)
async def test_what_a_lying_agent_answers(
    quiet_box: LocalBox, result: object, presence: Presence | None
) -> None:
    async with agent_with(quiet_box, host_key(quiet_box), [GREETING]) as (connection, control):
        await quiet_box.tunnel()
        control.replies = {"suspend_soon": result}
        asking = asyncio.create_task(quiet_box.registry.quiesce(BOX_ID))
        await until(lambda: b"suspend_soon" in control.received)
        connection.abort()
        assert await asking == presence
    assert refused(quiet_box)


async def test_an_agent_that_answers_and_stays(quiet_box: LocalBox) -> None:
    async with agent_with(quiet_box, host_key(quiet_box), [GREETING]) as (connection, control):
        await quiet_box.tunnel()
        control.replies = {"suspend_soon": {"shells": 1}}
        assert await quiet_box.registry.quiesce(BOX_ID) == Presence(1)
        await connection.wait_closed()
    assert refused(quiet_box)


@pytest.mark.parametrize("seconds", [-1_000_000, 1_000_000])
async def test_clocks_that_start_anew(
    quiet_box: LocalBox, seconds: int, shifted_clock: Path
) -> None:
    """What a host that was started again looks like to a process whose clock is the host's."""
    shift = quiet_box.root / "shift"
    shift.write_text("0")
    await quiet_box.start(env={"LD_PRELOAD": str(shifted_clock), "CLOCK_SHIFT": str(shift)})
    before = (await quiet_box.tunnel()).hello
    for announced in (True, False):
        generation = (await quiet_box.tunnel()).hello.generation
        if announced:
            await quiet_box.registry.quiesce(BOX_ID)
        else:
            await quiet_box.registry.close(BOX_ID)
            await asyncio.sleep(0.5)  # it dials, and is refused
        with frozen(quiet_box):
            shift.write_text(str(seconds))
            await quiet_box.open()
        after = (await quiet_box.tunnel()).hello
        assert (after.boot, after.generation) == (before.boot, generation + 1)
        seconds *= 2
    assert (await quiet_box.run("echo awake")).stdout == b"awake\n"
