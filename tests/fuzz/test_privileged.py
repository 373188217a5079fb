"""The part that needs root outlives a front that somebody has taken over.

A round is a connection with MESSAGES messages: calls that are valid, almost valid or no calls at
all, in any order, with any descriptors. No message may reach a handler with a value that the
protocol excludes, and nothing may be left of a connection.

The handlers are replaced, so no message harms this host. What the real ones do with a valid value
is not proven here; `tests/unit/boxd/privileged/test_handlers.py` tests those that decide something.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from random import Random
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from boxd.errors import Unavailable
from boxd.privileged import calls, channel, messages
from boxd.privileged.channel import LAST, MORE, PACKET_MAX
from boxd.privileged.handlers import Descriptors
from boxd.privileged.server import Server
from tests.fuzz.mutations import bent
from tests.harness.logs import provoked

if TYPE_CHECKING:
    from boxd.privileged.calls import Call
    from boxd.privileged.local import LocalHost
    from tests.plugins.figures import Figures

MESSAGES = 100
ID = re.compile(r"[0-9a-f]{32}")
TEXTS = (
    *("0123456789abcdef" * 2, "f" * 32, "debian", "web", "v" + "0" * 32, "p/x", "all"),
    *("../../etc", "/etc/shadow", "", "a" * 9000, "x\0y", "\ud7ff", "0" * 31, "0" * 32 + "\n"),
)
VALUES: tuple[object, ...] = (*TEXTS, 0, 1, -1, 1 << 62, 1.5, None, True, b"bytes", [], {}, ["x"])
IDS = {"box_id", "snapshot_id", "volume", "value"}


@pytest.mark.timeout(600)
@pytest.mark.figure("FZ-5")
async def test_a_hostile_front(figures: Figures) -> None:
    before = descriptors()
    reached: set[type[Call]] = set()
    with provoked("boxd.privileged.server"):
        for seed in figures(ci=200, long=10_000):
            await one_front(Random(seed), reached)
            assert descriptors() == before
    assert reached == set(calls.CALLS)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def one_front(random: Random, reached: set[type[Call]]) -> None:
    """Say MESSAGES messages to a server, on as many connections as it takes.

    `reached` collects the calls that reach a handler.
    """
    left = MESSAGES
    while left > 0:
        mine, theirs = channel.pair()
        mine.setblocking(False)
        with mine:
            server = Server(cast("LocalHost", None), theirs, handlers(random, reached))
            running = asyncio.create_task(server.run())
            while left > 0 and not running.done():
                left -= 1
                say(random, mine)
                await asyncio.sleep(0)
                drain(mine)
        await running


def say(random: Random, sock: socket.socket) -> None:
    """Send a message, or a part of one."""
    message = random.choice((valid, valid, almost_valid, almost_valid, no_message))(random)
    sent = [0] * random.choice((0, 0, 0, 0, 1, 2, 3))
    head = LAST if random.random() < 0.97 else random.choice((MORE, b"\2", b""))
    packet = head + message[:PACKET_MAX]
    try:
        socket.send_fds(sock, [packet], sent)
    except OSError:
        return  # closed by the server, or full


def valid(random: Random) -> bytes:
    """Return a message whose form is right, with values of all kinds."""
    if random.random() < 0.2:
        return messages.encode(messages.Cancel(random.randrange(8)))
    kind = random.choice(calls.CALLS)
    values = [value(random, field.name) for field in msgspec.structs.fields(kind)]
    return msgspec.msgpack.encode(["call", random.randrange(50), [kind.__name__, *values]])


def value(random: Random, name: str) -> object:
    """Return a value for a field, mostly one that fits."""
    if random.random() < 0.1:
        return random.choice(VALUES)
    if name == "plan":
        return [*(TEXTS[0], "web", "debian", True, 1.0, 512, 100, 0, "all", False, "", False)][
            : random.choice((12, 12, 12, 11))
        ]
    if name in IDS:
        return random.choice(TEXTS[:2])
    fitting: dict[str, object] = {
        "schema": TEXTS[4], "family": 2, "everything": False, "containers": False,
        "lasting": True, "memory": True, "box_ids": [TEXTS[0]] * random.randrange(3),
        "existing": ["runc"], "private_key": b"key",
    }  # fmt: skip
    return fitting.get(name, "web")


def almost_valid(random: Random) -> bytes:
    """Return a valid message with changed bytes."""
    return bent(random, valid(random))


def no_message(random: Random) -> bytes:
    """Return bytes of any kind."""
    return random.choice(
        (random.randbytes(random.randrange(60)), b"\x91" * 5000, b"\xdd\xff\xff\xff\xff", b"")
    )


def handlers(random: Random, reached: set[type[Call]]) -> dict[type[Call], Any]:
    """Return handlers that check what reaches them, and end in all ways."""

    async def handle(_host: None, call: Call, received: list[int]) -> object:
        check(call)
        reached.add(type(call))
        assert len(received) == call.SENT
        for descriptor in received:
            os.fstat(descriptor)
        ending = random.randrange(5)
        if ending == 0:
            await asyncio.sleep(0)
        elif ending == 1:
            await asyncio.Event().wait()  # until it is cancelled
        elif ending == 2:
            raise Unavailable("no")
        elif ending == 3:
            return Descriptors([os.dup(0)])
        return None

    return dict.fromkeys(calls.CALLS, handle)


def check(call: Call | calls.Plan) -> None:
    """Check every value that a handler gets."""
    for field in msgspec.structs.fields(call):
        content = getattr(call, field.name)
        if field.name in IDS and content is not None:
            assert ID.fullmatch(content)
        elif field.name == "box_ids":
            assert all(map(ID.fullmatch, content))
        elif field.name == "hostname":
            assert re.fullmatch(r"[a-z0-9-]{1,63}", content)
        elif field.name == "schema":
            assert re.fullmatch(r"v[0-9a-f]{32}", content)
        elif isinstance(content, calls.Plan):
            check(content)
        elif isinstance(content, str | bytes):
            assert len(content) <= 8192


def drain(sock: socket.socket) -> None:
    """Take all answers, and close their descriptors."""
    try:
        while True:
            packet, received, _, _ = socket.recv_fds(sock, PACKET_MAX + 1, 8)
            for descriptor in received:
                os.close(descriptor)
            if not packet:
                return
    except OSError:
        return


def descriptors() -> int:
    """Return the number of descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))
