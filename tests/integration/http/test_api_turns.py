"""Bodies in tiny chunks: parsed in many turns of the loop, between which others are served."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import h11
import pytest

from boxd.config import Address, Config
from boxd.http.requests.exchange import ABORT
from boxd.http.server import protocol
from boxd.http.server.parser import CROWD
from boxd.http.server.protocol import CUT_SHORT, HttpProtocol
from boxd.http.server.serve import ApiServer
from boxd.http.server.websocket_protocol import EARLY
from tests.harness.http.websocket import BINARY, RawSocket, frame, handshake
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

BODY = bytes(range(256)) * 256
TINY = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY)
HEAD = b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
LAST = b"0\r\n\r\n"
ONE_READ = 256 * 1024
IN_ONE_TURN = 2 * (CROWD + 1)
"""A turn of the protocol's own, and one because an answer is complete."""


@dataclass
class Served:
    """An application that tells the body of a request, and what was parsed in the meantime."""

    hasty: bool = False
    """Resets connections when it sees the first byte of a body."""
    wordy: bool = False
    """Says much at once, and resets the connection after the first word."""
    late: asyncio.Event | None = None
    """Answers without reading the body, once this is set."""
    answered: bool = False
    failures: list[Exception] = field(default_factory=list)
    """What went wrong when it answered late."""
    patient: bool = False
    """Asks for more of a body only when so much is there that reading has been stopped."""
    events: int = 0
    crowd: int = 0
    turns: int = 0
    waiting: int = 0
    behind: int = 0
    """How often it was given more while bytes waited to be parsed."""
    astray: list[str] = field(default_factory=list)
    over: bool = False
    seen: HttpProtocol | None = None
    bodies: list[bytes] = field(default_factory=list)
    server: ApiServer = field(init=False)
    address: Address = field(init=False)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or one WebSocket that answers with what it gets."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            message = await receive()
            await send({"type": "websocket.send", "bytes": message["bytes"]})
            return
        if self.late is not None:
            await self.late.wait()
            try:
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"late"})
            except Exception as error:
                self.failures.append(error)
            self.answered = True
            return
        body, more = bytearray(), True
        while more:
            if self.patient:
                await until(self.is_full)
            message = await receive()
            self.look()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            more = message["more_body"]
            if self.hasty and body:
                scope["state"][ABORT]()
        self.bodies.append(bytes(body))
        if self.wordy:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(50):
                await send({"type": "http.response.body", "body": b"word", "more_body": True})
                scope["state"][ABORT]()
            return
        length = b"%d" % len(body)
        lines = [(b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": lines})
        await send({"type": "http.response.body", "body": bytes(body)})

    @property
    def protocol(self) -> HttpProtocol | None:
        """The one connection, while there is one."""
        server = self.server._server
        if server is None:
            return None
        found = [one for one in server.server_state.connections if isinstance(one, HttpProtocol)]
        return found[0] if found else None

    def is_full(self) -> bool:
        """Whether reading has stopped because of what waits for the application."""
        one = self.protocol
        return one is None or one.flow.read_paused or one.conn.their_state is not h11.SEND_BODY

    def look(self) -> None:
        """Notes what must not be: reading goes on while bytes wait to be parsed."""
        one = self.protocol
        if one is not None and one.behind:
            self.behind += 1
            if one.transport.is_reading():
                self.astray.append("reads on")

    def turn(self) -> None:
        """Called in each turn of the loop."""
        self.turns += 1
        self.crowd = max(self.crowd, self.events)
        self.events = 0
        if (one := self.protocol) is not None:
            self.seen = one
            self.waiting = max(self.waiting, len(one.conn.trailing_data[0]))
        elif self.seen is not None and self.seen.behind:
            self.astray.append("a turn of a connection that is gone")
        if not self.over:
            asyncio.get_running_loop().call_soon(self.turn)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection; it is gone at the end."""
        reader, writer = await asyncio.open_connection(self.address.host, self.address.port)
        self.writers.append(writer)
        return reader, writer


@pytest.fixture
async def app(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """The application, served. What is parsed is counted."""
    async with serving(monkeypatch) as served:
        yield served


@asynccontextmanager
async def serving(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """The application until the end of the block."""
    app = Served()
    parse = h11.Connection._extract_next_receive_event

    def counted(self: h11.Connection) -> object:
        app.events += self.our_role is h11.SERVER
        return parse(self)

    monkeypatch.setattr(h11.Connection, "_extract_next_receive_event", counted)
    app.server = ApiServer(app, Config(api_addr=Address("127.0.0.1", 0)))
    app.address = await app.server.start()
    app.turn()
    try:
        yield app
    finally:
        for writer in app.writers:
            writer.transport.abort()
        await app.server.close()
        app.over = True


async def answers(reader: asyncio.StreamReader, number: int) -> list[tuple[int, bytes]]:
    """Status and body of so many answers."""
    found = []
    for _ in range(number):
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        body = await asyncio.wait_for(reader.readexactly(int(length[1])), 30)
        found.append((int(head.split(b" ")[1]), body))
    return found


async def test_others_have_their_turns_while_a_body_in_tiny_chunks_comes(app: Served) -> None:
    """Nor is more read in the meantime than one read."""
    reader, writer = await app.connect()
    writer.write(HEAD + b"\r\n" + TINY * 4 + LAST)
    assert await answers(reader, 1) == [(200, BODY * 4)]
    assert app.crowd <= IN_ONE_TURN
    assert app.turns >= 4 * len(BODY) // IN_ONE_TURN
    assert app.waiting <= ONE_READ + 64


async def test_an_application_that_asks_for_more_does_not_make_reading_go_on(app: Served) -> None:
    app.patient = True
    reader, writer = await app.connect()
    writer.write(HEAD + b"\r\n" + b"8\r\n12345678\r\n" * 100_000 + LAST)
    assert await answers(reader, 1) == [(200, b"12345678" * 100_000)]
    assert app.behind > 0
    assert app.astray == []
    assert app.waiting <= ONE_READ + 64


async def test_what_one_read_brings_of_a_body_with_a_length_is_one_event(app: Served) -> None:
    reader, writer = await app.connect()
    writer.write(b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(TINY) + TINY)
    assert await answers(reader, 1) == [(200, TINY)]
    assert app.crowd <= 100


async def test_requests_one_behind_the_other(app: Served) -> None:
    """Also behind bodies with a length, which are parsed at once, tiny chunks are not."""
    plain = b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\none"
    tiny = HEAD + b"\r\n" + TINY + LAST
    reader, writer = await app.connect()
    writer.write(plain + plain + tiny + plain + tiny)
    expected = [b"one", b"one", BODY, b"one", BODY]
    assert await answers(reader, 5) == [(200, body) for body in expected]
    assert app.crowd <= IN_ONE_TURN
    writer.write(plain)
    assert await answers(reader, 1) == [(200, b"one")]


async def test_the_end_is_told_after_what_came_before_it(app: Served) -> None:
    reader, writer = await app.connect()
    writer.write(HEAD + b"\r\n" + TINY)
    writer.write_eof()
    ((status, text),) = await answers(reader, 1)
    assert status == 400
    assert CUT_SHORT in text.decode()
    assert app.turns >= len(BODY) // IN_ONE_TURN
    assert await asyncio.wait_for(reader.read(), 30) == b""


@pytest.mark.parametrize("rest", [b"", b"no size\r\n"], ids=["end", "malformed chunk"])
async def test_an_application_that_answers_after_a_refusal_is_ignored(
    app: Served, rest: bytes
) -> None:
    """The protocol has answered; a second answer on the connection is an error of the server."""
    app.late = asyncio.Event()
    reader, writer = await app.connect()
    writer.write(HEAD + b"\r\n" + b"1\r\nx\r\n" + rest)
    if not rest:
        writer.write_eof()
    ((status, _),) = await answers(reader, 1)
    assert status == 400
    app.late.set()
    await until(lambda: app.answered)
    assert app.failures == []
    writer.close()


async def test_a_malformed_chunk_behind_many_is_refused(
    app: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "LINGER_IDLE_S", 0.1)
    reader, writer = await app.connect()
    writer.write(HEAD + b"\r\n" + TINY + b"x\r\n" + TINY)
    ((status, _),) = await answers(reader, 1)
    assert status == 400
    assert await asyncio.wait_for(reader.read(), 30) == b""
    await until(lambda: app.protocol is None)
    assert app.bodies == []


async def test_a_websocket_behind_a_body_in_tiny_chunks(app: Served) -> None:
    reader, writer = await app.connect()
    writer.write(HEAD + b"\r\n" + TINY + LAST + handshake("/x"))
    assert await answers(reader, 1) == [(200, BODY)]
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    assert head.startswith(b"HTTP/1.1 101 ")
    writer.write(frame(BINARY, b"hi"))
    assert await RawSocket(reader, writer).frame() == (BINARY, b"hi")


async def test_bytes_behind_a_handshake_are_refused_as_ever(app: Served) -> None:
    reader, writer = await app.connect()
    writer.write(HEAD + b"\r\n" + TINY + LAST + handshake("/x") + frame(BINARY, b"hi"))
    (served, (status, text)) = await answers(reader, 2)
    assert served == (200, BODY)
    assert status == 400
    assert EARLY in text.decode()


async def test_a_connection_that_is_lost_takes_what_waits_with_it(app: Served) -> None:
    app.hasty = True
    reader, writer = await app.connect()
    writer.write(HEAD + b"\r\n" + TINY)
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(reader.read(), 30)
    await until(lambda: app.protocol is None)
    server = app.server._server
    assert server is not None
    await until(lambda: not server.server_state.tasks)
    assert app.seen is not None
    assert app.seen.conn.trailing_data[0] != b""
    assert app.astray == []
    before = app.turns
    app.crowd = 0
    await until(lambda: app.turns > before + 10)
    assert app.crowd == 0


async def test_who_writes_on_after_a_loss_before_it_is_told_writes_to_nobody(app: Served) -> None:
    """Asyncio would complain of each piece in the log."""
    app.wordy = True
    reader, writer = await app.connect()
    writer.write(HEAD + b"\r\n" + LAST)
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(reader.read(), 30)
    await until(lambda: app.protocol is None)
