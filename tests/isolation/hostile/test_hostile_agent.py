"""Agents that attack the daemon lose their tunnel, and nobody else notices."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh
import pytest
from asyncssh.constants import MSG_CHANNEL_CLOSE, MSG_GLOBAL_REQUEST
from asyncssh.packet import Boolean, String, UInt32

from box_guest import protocol
from boxd.boxes.commands import exec as commands
from boxd.errors import Unavailable
from boxd.tunnel import channel, limits
from boxd.tunnel.channel import ExitStatus
from boxd.tunnel.limits import OPENS
from tests.harness.agents.agent import BOX_ID, LocalBox, local_agent
from tests.harness.agents.impostor import GREETING, Impostor, agent_with, dial, host_key
from tests.harness.service.user import User
from tests.harness.wait import DEADLINE, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.service.daemon import Daemon
    from tests.plugins.strict_logs import AssertLogs, Collector

    Session = asyncssh.SSHServerSession[bytes]

DIALS = f"""
import socket
while True:
    with socket.socket(socket.AF_UNIX) as one:
        try:
            one.connect("{protocol.RUN_DIR}/{protocol.TUNNEL_SOCKET}")
        except OSError:
            break
"""
ROOT = Path(__file__).parents[3]
ATTACKS = {
    "opens": "too many channels opened in a second",
    "unknown opens": "too many channels opened in a second",
    "global requests": "too many requests",
    "ignored": "too many messages without data",
    "not understood": "too many messages without data",
    "empty data": "too many messages without data",
    "windows": "too many messages without data",
    "channel requests": "too many messages without data",
    "foreign channel": "Invalid channel number",
    "oversized frame": "Max packet size exceeded",
    "key exchange out of order": "",
    "requests": "too many",
    "pins": "too many",
    "activity": "too many lines in a second",
    "activity of no number": "the number of shells is not an integer",
    "unknown lines": "too many lines in a second",
    "garbage": "not JSON",
    "endless line": "a line is longer than",
    "replayed hello": "a second hello",
    "replies": "too many lines in a second",
    "deep line": "not JSON",
    "dials": "too many connections in a second",
}
COMMANDS = 20
"""Of the neighbour while the attack goes on."""


@pytest.fixture
async def hostile_box() -> AsyncIterator[LocalBox]:
    """A box whose agent is hostile."""
    async with local_agent() as box:
        yield box


async def attacked(box: LocalBox, kind: str) -> int:
    """Runs an attack to its end: how many tries it took the daemon to cut the agent off."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.isolation.hostile.hostile_agent", str(box.run_dir), kind),
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, f"{kind} went on"
    return int(output)


# asyncio's own loop, unlike the service's, forgets what it accepts while its server closes.
@pytest.mark.filterwarnings("ignore:unclosed.*(transport <_Selector|tunnel.sock):ResourceWarning")
@pytest.mark.parametrize("kind", ATTACKS)
async def test_the_tunnel_is_cut_and_others_go_on(
    hostile_box: LocalBox,
    local_box: LocalBox,
    kind: str,
    assert_logs: AssertLogs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On a machine that is busy with other things no attack may be as fast as the real limit.
    monkeypatch.setattr(limits, "EMPTY", (100, limits.EMPTY[1]))
    neighbour = await local_box.tunnel()
    with assert_logs("agent misbehaved"):
        attacking = asyncio.create_task(attacked(hostile_box, kind))
        for number in range(COMMANDS):
            done = await local_box.run(f"echo {number}; cat", stdin=b"in")
            assert done.stdout == f"{number}\nin".encode()
            assert done.status == ExitStatus(0, None)
        assert await attacking > 0
        await until(lambda: hostile_box.misbehaviour)
    gc.collect()
    assert hostile_box.misbehaviour[0].startswith("agent misbehaved: ")
    assert ATTACKS[kind] in hostile_box.misbehaviour[0]
    assert not neighbour.closed
    assert local_box.misbehaviour == []
    # The same box with a well-behaved agent is welcome, a moment later.
    await hostile_box.start()
    assert (await hostile_box.run("echo better")).stdout == b"better\n"


async def test_each_time_the_agent_waits_longer(
    hostile_box: LocalBox, assert_logs: AssertLogs, log_collector: Collector
) -> None:
    """So that what it costs the daemon, and what it writes to the log, is bounded."""
    with assert_logs("agent misbehaved: the line is not JSON"):
        for _ in range(3):
            hostile_box.misbehaviour.clear()
            lines = [GREETING, b"x\n" * 9]
            async with agent_with(hostile_box, host_key(hostile_box), lines) as (connection, _):
                await connection.wait_closed()
            await until(lambda: hostile_box.misbehaviour)
        assert [line.rpartition("cut off for ")[2] for line in log_collector.lines] == [
            "0.5 s",
            "1 s",
            "2 s",
        ]
    # Neither a new start of the box nor its end waits for the pause.
    await hostile_box.open()
    async with agent_with(hostile_box, host_key(hostile_box), [GREETING]):
        await hostile_box.tunnel()


async def test_questions_of_an_agent_that_is_gone_are_not_answered(hostile_box: LocalBox) -> None:
    """Each answer into a closed socket would be a warning in the log."""
    async with agent_with(hostile_box, host_key(hostile_box), [GREETING]) as (connection, _):
        await hostile_box.tunnel()
        for _ in range(OPENS[0] // 2):
            connection.send_packet(MSG_GLOBAL_REQUEST, String("x"), Boolean(True))
        connection.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        await until(lambda: hostile_box.registry.peek(BOX_ID) is None)
    assert hostile_box.misbehaviour == []


class Endless(Impostor):
    """Runs any command, and never closes its channel, whatever the daemon sends."""

    connection: asyncssh.SSHServerConnection

    def __init__(self, kind: str) -> None:
        super().__init__([GREETING])
        self._kind = kind

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self.connection = conn

    def session_requested(
        self,
    ) -> Session | tuple[asyncssh.SSHServerChannel[bytes], Session]:
        if not self.control.started:
            return self.control
        chan = self.connection.create_server_channel()
        # A channel of asyncssh's answers a close by itself.
        handle = chan.process_packet
        vars(chan)["process_packet"] = lambda kind, number, packet: (
            kind == MSG_CHANNEL_CLOSE or handle(kind, number, packet)
        )
        return chan, EndlessCommand(chan, self._kind)


class EndlessCommand(asyncssh.SSHServerSession[bytes]):
    """Says that it has ended, unless it is silent, and then goes on as its kind does."""

    def __init__(self, chan: asyncssh.SSHServerChannel[bytes], kind: str) -> None:
        self._chan = chan
        self._kind = kind
        self._writing: asyncio.TimerHandle | None = None

    def exec_requested(self, command: str) -> bool:
        return True

    def session_started(self) -> None:
        if self._kind != "silent":
            self._chan._send_request(b"exit-status", UInt32(3))
        if self._kind == "drops":
            self._write(1)
        elif self._kind == "floods":
            self._write(1 << 17)

    def _write(self, size: int) -> None:
        if not self._chan.get_write_buffer_size():
            self._chan.write(bytes(size))
        pause = 0.05 if size == 1 else 0
        self._writing = asyncio.get_running_loop().call_later(pause, self._write, size)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._writing is not None:
            self._writing.cancel()


@pytest.mark.parametrize("kind", ["ended", "drops", "floods", "silent"])
async def test_a_command_whose_channel_is_never_closed_ends(
    hostile_box: LocalBox, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(commands, "KILL_AFTER_S", 0.2)
    monkeypatch.setattr(commands, "LOOK_S", 0.02)
    monkeypatch.setattr(channel, "CLOSE_S", 0.2)
    connection = await dial(hostile_box.run_dir, host_key(hostile_box), Endless(kind))
    running = await (await hostile_box.tunnel()).start("x")

    async def take(_stream: str, data: bytes) -> None:
        # A reader that is slower than the flood.
        await asyncio.sleep(0.01 if len(data) > 1 else 0)

    async with asyncio.timeout(DEADLINE):
        run = commands.ExecRun(running, timeout_s=1)
        if kind == "silent":
            assert await run.pump(take) == commands.TIMEOUT_CODE
        else:
            with pytest.raises(Unavailable, match="did not send all output"):
                await run.pump(take)
    assert not (await hostile_box.tunnel()).closed
    connection.abort()
    await connection.wait_closed()


async def test_what_a_busy_box_does_is_no_attack(local_box: LocalBox) -> None:
    """Far more than a box's owner can ask for at once through the front door."""

    async def one(number: int) -> None:
        assert (await local_box.run(f"echo {number}")).stdout == f"{number}\n".encode()

    for _ in range(3):
        await asyncio.gather(*(one(number) for number in range(2 * OPENS[0])))
    megabyte = bytes(1 << 20)
    copying = await (await local_box.tunnel()).start("cat")
    reading = asyncio.create_task(_length(copying.output()))
    for _ in range(64):
        await copying.write(megabyte)
    copying.write_eof()
    assert await reading == 64 << 20
    # Bytes one by one, as programs on terminals write them.
    done = await local_box.run("i=0; while [ $i -lt 5000 ]; do printf x; i=$((i+1)); done")
    assert done.stdout == b"x" * 5000
    assert local_box.misbehaviour == []
    assert (await local_box.tunnel()).hello.generation == 1


async def _length(output: AsyncIterator[tuple[str, bytes]]) -> int:
    return sum([len(data) async for _, data in output])


def test_whose_agent_was_cut_off_is_told_of_its_box(daemon: Daemon, tmp_path: Path) -> None:
    """By root in the box, whose agent is not to be trusted for it."""
    user = User(daemon, tmp_path)
    user.ssh("bad", "true")
    user.ssh("good", "true")
    attack = user.command("bad", f"python3 -I - <<'END'\n{DIALS}END\n")
    subprocess.run(attack, check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=60)
    deadline = time.monotonic() + DEADLINE
    while not (text := str(user.boxes()["bad"]["detail"])):
        assert time.monotonic() < deadline, daemon.log.read_text()
        time.sleep(0.05)
    assert text == "agent misbehaved: too many connections in a second"
    assert user.boxes()["good"]["detail"] == ""
    key = user.ssh("cli", "apikeys create look")
    assert text.encode() in user.get(key, "/v1/boxes")[1]
    for command in "ls --wide", "info bad":
        assert text in user.ssh("cli", command)
    # The box itself goes on, a moment later.
    assert user.ssh("bad", "echo better") == "better"
