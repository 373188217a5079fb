"""Agents that answer requests about background commands and files as they please."""

from __future__ import annotations

import asyncio
import contextlib
import json
from contextlib import aclosing
from typing import TYPE_CHECKING

import asyncssh
import pytest

from box_guest import protocol
from box_guest.shared import command_messages as messages
from box_guest.shared.requests import BAD, MAX_ANSWER, Refused, failure, success
from boxd.errors import BadRequest, BoxdError, Unavailable
from boxd.tunnel import requests
from boxd.tunnel.commands import BoxCommands
from boxd.tunnel.watches import watching
from tests.harness.agents.agent import LocalBox, local_agent
from tests.harness.agents.impostor import GREETING, Impostor, dial, host_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.tunnel.channel import Tunnel

NUMBER = "0123456789abcdef"
STATE = {
    "id": NUMBER,
    "cmd": "make",
    "running": False,
    "exit_code": 0,
    "signal": None,
    "pid": 42,
    "started": 1.0,
    "ended": 2.0,
    "output_bytes": 3,
    "dropped_bytes": 0,
    "stdin_open": False,
    "keep_awake": True,
    "timeout_s": None,
}
ANSWER = success({"command": STATE})
END = messages.frame(messages.END, json.dumps(STATE).encode())


class Saying(asyncssh.SSHServerSession[bytes]):
    """A session that says something to any request, and closes or stays."""

    def __init__(self, says: bytes, *, ends: bool) -> None:
        self._says, self._ends = says, ends

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._chan = chan

    def subsystem_requested(self, subsystem: str) -> bool:
        return subsystem in (protocol.COMMANDS_SUBSYSTEM, protocol.WATCH_SUBSYSTEM)

    def session_started(self) -> None:
        self._chan.write(self._says)
        if self._ends:
            self._chan.exit(0)


class Liar(Impostor):
    """An agent whose sessions but the control channel say something."""

    def __init__(self, says: bytes, *, ends: bool) -> None:
        super().__init__([GREETING])
        self._says, self._ends = says, ends
        self._first = True

    def session_requested(self) -> asyncssh.SSHServerSession[bytes]:
        first, self._first = self._first, False
        return self.control if first else Saying(self._says, ends=self._ends)


@pytest.fixture
async def quiet_box() -> AsyncIterator[LocalBox]:
    """A box whose agent is not started."""
    async with local_agent() as box:
        yield box


@contextlib.asynccontextmanager
async def saying(box: LocalBox, says: bytes, *, ends: bool = True) -> AsyncIterator[BoxCommands]:
    """The commands of a box whose agent says something to any request."""
    connection = await dial(box.run_dir, host_key(box), Liar(says, ends=ends))
    try:
        yield BoxCommands(await box.tunnel())
    finally:
        connection.abort()
        await connection.wait_closed()


@pytest.mark.parametrize(
    "says",
    [
        b"",
        b"\n",
        b"{}\n",
        b"[" * 100_000 + b"\n",
        b"x" * (MAX_ANSWER + 1),
        b'{"ok": true}\n',
        success({}),
        success({"command": {**STATE, "pid": "1"}}),
        success({"command": {**STATE, "cmd": "x" * 2000}}),
        success({"commands": [STATE] * 65}),
        success({"commands": {}}),
    ],
)
async def test_a_wrong_answer_is_named(quiet_box: LocalBox, says: bytes) -> None:
    async with saying(quiet_box, says) as commands:
        text = "broke the protocol|sent no answer"
        with pytest.raises(Unavailable, match=text):
            await commands.show(NUMBER)
        with pytest.raises(Unavailable, match=text):
            await commands.all()


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        b"\0",
        messages.frame(messages.STDOUT, b"abc"),
        messages.frame(messages.STDOUT, b"") + END,
        messages.frame(messages.STDOUT, b"abcdefghijk") + END,
        messages.frame(messages.STDERR, b"x" * 60_000) * 100 + END,
        b"\1\xff\xff\xff\xff",
        b"\7\0\0\0\0",
        messages.gap((1 << 63) - 1) * 2 + END,
        messages.frame(messages.DROPPED, b"x") + END,
        messages.frame(messages.END, b"{}"),
        END + END,
        END + messages.frame(messages.STDOUT, b"abc"),
    ],
)
async def test_a_wrong_output_is_named(quiet_box: LocalBox, rest: bytes) -> None:
    async with saying(quiet_box, ANSWER + rest) as commands:
        with pytest.raises(Unavailable, match="broke the protocol"):
            await _read(commands)


async def _read(commands: BoxCommands) -> None:
    async with (
        commands.output(NUMBER, 0, follow=True, limit=10) as reader,
        aclosing(reader.pieces()) as pieces,
    ):
        async for piece in pieces:
            assert len(piece.data) <= 10


async def test_a_right_output_passes(quiet_box: LocalBox) -> None:
    rest = messages.gap(5) + messages.frame(messages.STDOUT, b"abc") + END
    async with (
        saying(quiet_box, ANSWER + rest) as commands,
        commands.output(NUMBER, 0, follow=False) as reader,
    ):
        pieces = [piece async for piece in reader.pieces()]
    assert [(piece.data, piece.next_offset) for piece in pieces] == [(b"", 5), (b"abc", 8)]


async def test_the_text_of_a_refusal_is_made_safe(quiet_box: LocalBox) -> None:
    async with saying(quiet_box, failure(Refused(BAD, "no\x1b[2J" + "x" * 5000))) as commands:
        with pytest.raises(BadRequest) as refused:
            await commands.show(NUMBER)
    assert str(refused.value).startswith("no?[2Jxxx")
    assert len(str(refused.value)) <= 1000


async def test_an_agent_that_never_answers(
    quiet_box: LocalBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "ANSWER_S", 0.1)
    async with saying(quiet_box, b"{", ends=False) as commands:
        with pytest.raises(Unavailable, match="did not answer within"):
            await commands.show(NUMBER)


async def test_input_for_an_agent_that_refuses_it_ends(quiet_box: LocalBox) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(60_000)
            await asyncio.sleep(0)

    async with saying(quiet_box, failure(Refused(BAD, "no")), ends=False) as commands:
        with pytest.raises(BadRequest, match="no"):
            await commands.write(NUMBER, endless(), close=False)


@pytest.mark.parametrize(
    "rest",
    [
        b"x\n",
        b"[]\n",
        b'{"kind": "other"}\n',
        b'{"kind": "created", "path": 1, "is_dir": false}\n',
        b'{"kind": "created", "path": "/a", "is_dir": 1}\n',
        b'{"kind": "moved", "path": "/a", "is_dir": false}\n',
        b'{"kind": "created", "path": "' + b"x" * 5000 + b'", "is_dir": false}\n',
        b"x" * 100_000,
    ],
)
async def test_a_wrong_event_is_named(quiet_box: LocalBox, rest: bytes) -> None:
    async with saying(quiet_box, success({"watches": 1}) + rest):
        tunnel = await quiet_box.tunnel()
        with pytest.raises(BoxdError, match="broke the protocol"):
            await _watch(tunnel)


async def _watch(tunnel: Tunnel) -> None:
    async with watching(tunnel, "/", recursive=False) as reader:
        async for event in reader.events():
            pytest.fail(f"{event} passed")


async def test_an_agent_without_the_subsystem(quiet_box: LocalBox) -> None:
    class Old(Saying):
        def subsystem_requested(self, subsystem: str) -> bool:
            return False

    liar = Liar(b"", ends=True)
    connection = await dial(quiet_box.run_dir, host_key(quiet_box), liar)
    tunnel = await quiet_box.tunnel()
    liar.session_requested = lambda: Old(b"", ends=True)  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="by an earlier version of the service"):
        await BoxCommands(tunnel).show(NUMBER)
    connection.abort()
    await connection.wait_closed()
