"""What clients that stop reading make the service hold: counted where it waits, at most a MiB."""

from __future__ import annotations

import contextlib
import logging
import socket
from typing import TYPE_CHECKING

import pytest

from box_guest.shared.packed import Packed
from boxd.http.requests import sse
from boxd.http.routes.commands import term
from boxd.http.server import protocol, websocket_protocol
from boxd.http.server.protocol import HttpProtocol
from boxd.tunnel import channel
from tests.harness.http.commands import asking, header, marked, silent, stream
from tests.harness.http.terminals import opened, protocol_of
from tests.harness.http.web import ALICE
from tests.harness.http.websocket import BINARY
from tests.harness.wait import until

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from tests.harness.http.web import Web

PIECE = 32 * 1024
KIB, MIB = 1024, 1024 * 1024
EVENT = sse.MAX_RAW * 4 // 3 + 64
READ = 256 * KIB
"""What the loop reads from a socket at once."""
STILL = 30
"""Looks in which nothing changes."""


class Watched(channel.Exec):
    """A command whose channel is looked at."""

    made: list[Watched]

    def __init__(self) -> None:
        super().__init__()
        self.made.append(self)

    def output_held(self) -> int:
        """Bytes of output that wait in its channel, and for or with its reader."""
        assert self._chan is not None
        waiting = self._chan._recv_buf
        assert isinstance(waiting, Packed)
        return waiting.memory + sum(len(data) for _, data in self._chunks)

    def input_held(self) -> int:
        """Bytes of input that wait for the box."""
        assert self._chan is not None
        return self._chan.get_write_buffer_size()


@pytest.fixture(autouse=True)
def commands(monkeypatch: pytest.MonkeyPatch) -> list[Watched]:
    """Those that are started."""
    monkeypatch.setattr(Watched, "made", [], raising=False)
    monkeypatch.setattr(channel, "Exec", Watched)
    return Watched.made


@pytest.fixture
def transports(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.WriteTransport]:
    """Those of the server's connections."""
    made: list[asyncio.WriteTransport] = []
    accept = HttpProtocol.connection_made

    def watched(self: HttpProtocol, transport: asyncio.Transport) -> None:
        made.append(transport)
        accept(self, transport)

    monkeypatch.setattr(HttpProtocol, "connection_made", watched)
    return made


async def stand_still(held: Callable[[], int], least: int) -> int:
    """Waits until it changes no more; what it is then."""
    seen = [0, 0]

    def still() -> bool:
        now = held()
        seen[:] = [now, seen[1] + 1 if now == seen[0] and now >= least else 0]
        return seen[1] > STILL

    await until(still)
    return seen[0]


async def test_a_stream_of_events_that_nobody_reads(
    web: Web, commands: list[Watched], transports: list[asyncio.WriteTransport]
) -> None:
    await stream(web.client(), "web", header("true"))
    transports.clear()
    commands.clear()
    loud = header("cat /dev/zero", env={"EXEC_MARK": "stalled"})
    with contextlib.ExitStack() as stack:
        stack.callback(silent(web, loud))
        await until(lambda: commands and transports)

        def held() -> int:
            return commands[0].output_held() + transports[0].get_write_buffer_size()

        # The channel renews its window when less than half of it is left. So at least half waits.
        found = await stand_still(held, channel.WINDOW // 2)
        assert found + EVENT <= MIB  # the event that waits to be written stands nowhere else
    await until(lambda: not marked("stalled"))


async def test_who_takes_nothing_for_long_holds_no_box_awake(
    web: Web, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A command that has ended long ago, and a client that takes a little now and then."""
    caplog.set_level(logging.INFO, protocol.__name__)
    await stream(web.client(), "web", header("true"))
    monkeypatch.setattr(protocol, "STALLED_S", 0.05)
    looks = [0]

    def less(_transport: object) -> int:
        looks[0] += 1
        return -looks[0]

    address = (web.address.host, web.address.port)
    with socket.create_connection(address) as client, monkeypatch.context() as patched:
        patched.setattr(protocol, "_unsent", less)
        client.sendall(asking(web, header("head -c 20000000 /dev/zero")))
        await until(lambda: looks[0] > 5)
        assert len(web.lifecycle.attachments.held()) == 1
        assert "it is cut off" not in caplog.text
        patched.undo()
        await until(lambda: not web.lifecycle.attachments.held())
        with pytest.raises(ConnectionResetError):  # what it still reads looks like no whole answer
            _drain(client)
    assert "disconnected a client that read nothing of its response for 0.05 s" in caplog.text


def _drain(client: socket.socket) -> None:
    while client.recv(MIB):
        pass


async def test_a_stream_of_events_that_is_read_drop_by_drop(
    web: Web, commands: list[Watched], transports: list[asyncio.WriteTransport]
) -> None:
    """Each drop frees less than a window, and a window may be on its way then."""
    await stream(web.client(), "web", header("true"))
    transports.clear()
    commands.clear()
    loud = header("cat /dev/zero", env={"EXEC_MARK": "drops"})
    reader, writer = await web.connect()
    writer.write(asking(web, loud))
    await until(lambda: commands and transports)
    endpoint = transports[0].get_extra_info("socket")
    endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * KIB)

    def held() -> int:
        return commands[0].output_held() + transports[0].get_write_buffer_size()

    assert await stand_still(held, channel.WINDOW // 2) + EVENT <= MIB
    read = 0
    while read < 8 * MIB:
        read += len(await reader.readexactly(PIECE))
        assert held() + EVENT <= MIB
    writer.transport.abort()
    await until(lambda: not marked("drops"))


async def test_a_terminal_that_nobody_reads_and_whose_program_reads_nothing(
    web: Web, commands: list[Watched]
) -> None:
    await web.operations.boxes.up(ALICE, "web")
    terminal = await opened(web)
    terminal.send(BINARY, b"stty raw; exec cat /dev/zero\n")
    served = protocol_of(web)
    (command,) = commands
    # Until it is raw, keys that nobody reads are thrown away.
    await until(lambda: command.output_held() >= channel.TERMINAL_WINDOW // 2)
    for _ in range(40):
        terminal.send(BINARY, b"k" * term.MESSAGE_BYTES)
    await until(lambda: command.input_held() and served.read_paused)

    def held() -> int:
        came = len(served._unparsed) + len(served._message) + served._waiting
        out = command.output_held() + served.transport.get_write_buffer_size()
        return out + came + command.input_held()

    found = await stand_still(held, channel.TERMINAL_WINDOW + term.MESSAGE_BYTES)
    assert found + term.MESSAGE_BYTES <= MIB  # the message that waits to be passed on
    terminal.writer.transport.abort()
    await until(lambda: command._chan is None)


def test_what_may_be_held_is_a_mib_by_the_bounds_themselves() -> None:
    events = channel.WINDOW + channel.PACKET + protocol.WRITE_BUFFER + 2 * EVENT
    assert events <= MIB
    shown = channel.TERMINAL_WINDOW + 2 * channel.TERMINAL_PACKET + websocket_protocol.WRITE_BUFFER
    ahead = min(websocket_protocol.AHEAD, term.MESSAGE_BYTES) + term.MESSAGE_BYTES
    typed = READ + ahead + 2 * term.MESSAGE_BYTES + channel.WRITE_BUFFER
    assert shown + typed <= MIB
