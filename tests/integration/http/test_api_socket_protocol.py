"""What the WebSocket protocol does with clients and applications that are slow, gone or hostile."""

from __future__ import annotations

import asyncio
import json
import struct
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from uvicorn.protocols.utils import ClientDisconnected

from boxd.config import Address, Config
from boxd.http.proxy.bridge import LOST
from boxd.http.requests.exchange import CLOSED, LIMIT
from boxd.http.server import serve, websocket_protocol
from boxd.http.server.serve import ApiServer
from boxd.http.server.websocket_protocol import AHEAD, EARLY, SocketProtocol
from tests.harness.http.terminals import ping_often
from tests.harness.http.websocket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    RawSocket,
    frame,
    handshake,
)
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Message, Receive, Scope, Send


@dataclass
class Served:
    """An application that does what a test tells it, one connection at a time."""

    accepting: bool = True
    receiving: asyncio.Event = field(default_factory=asyncio.Event)
    limit: int = 0
    received: list[Message] = field(default_factory=list)
    scope: dict[str, Any] = field(default_factory=dict)
    send: Send = field(init=False)
    server: ApiServer = field(init=False)
    address: Address = field(init=False)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One WebSocket."""
        self.scope, self.send = dict(scope), send
        await receive()
        if not self.accepting:
            await scope["state"][CLOSED].wait()
            self.received.append(await receive())
        if self.limit:
            scope["state"][LIMIT](self.limit)
        await send({"type": "websocket.accept"})
        await self.receiving.wait()
        while True:
            message = await receive()
            self.received.append(message)
            if message["type"] == "websocket.disconnect":
                return

    @property
    def protocol(self) -> SocketProtocol:
        """The one connection that there is."""
        server = self.server._server
        assert server is not None
        (found,) = server.server_state.connections
        assert isinstance(found, SocketProtocol)
        return found

    @property
    def gone(self) -> bool:
        """Whether no connection is left."""
        server = self.server._server
        state = server.server_state if server is not None else None
        return state is None or not (state.connections or state.tasks)

    async def ask(self, sent: bytes) -> tuple[int, RawSocket]:
        """The status of the answer to these bytes, and the connection."""
        reader, writer = await asyncio.open_connection(self.address.host, self.address.port)
        self.writers.append(writer)
        writer.write(sent)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        return int(head.split(b" ")[1]), RawSocket(reader, writer)

    async def connect(self) -> RawSocket:
        """An accepted WebSocket."""
        status, opened = await self.ask(handshake("/x"))
        assert status == 101
        return opened


@asynccontextmanager
async def serving() -> AsyncIterator[Served]:
    """The application, served."""
    app = Served()
    app.server = ApiServer(app, Config(api_addr=Address("127.0.0.1", 0)))
    app.address = await app.server.start()
    try:
        yield app
    finally:
        app.receiving.set()
        for writer in app.writers:
            writer.transport.abort()
        await app.server.close()


async def answer_pings(client: RawSocket, number: int) -> None:
    """Answers so many pings."""
    for _ in range(number):
        opcode, data = await client.frame()
        assert opcode == PING
        client.send(PONG, data)


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pings five times a second."""
    monkeypatch.setattr(serve, "PING_S", 0.2)


async def test_an_application_that_does_not_receive_is_not_cut() -> None:
    async with serving() as app:
        client = await app.connect()
        client.send(TEXT, b"first")
        client.send(BINARY, b"second")
        ping_often(app.protocol, patience=30)
        await answer_pings(client, 5)
        client.writer.write(frame(BINARY, bytes(AHEAD)) * 3)
        await until(lambda: app.protocol.read_paused)
        ping_often(app.protocol, patience=0.05)
        await answer_pings(client, 5)
        ping_often(app.protocol, patience=30)
        app.receiving.set()
        await until(lambda: len(app.received) == 5)
        assert [len(message.get("text") or message["bytes"]) for message in app.received] == [
            5,
            6,
            *[AHEAD] * 3,
        ]
        await answer_pings(client, 3)


@pytest.mark.usefixtures("brisk")
async def test_a_client_that_answers_no_ping_is_cut() -> None:
    async with serving() as app:
        client = await app.connect()
        app.receiving.set()
        assert (await client.until_close())[1] == 1011
        await until(lambda: app.gone)
        assert [message["type"] for message in app.received] == ["websocket.disconnect"]


async def test_a_client_that_takes_nothing_is_cut_by_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket_protocol, "GONE_MS", 500)
    async with serving() as app:
        client = await app.connect()
        client.hold()
        await until(lambda: "send" in vars(app))
        protocol = app.protocol
        filling = asyncio.create_task(_fill(app, protocol))
        await until(filling.done)
        with pytest.raises(ClientDisconnected):
            filling.result()
        app.receiving.set()
        await until(lambda: app.gone)


async def _fill(app: Served, protocol: SocketProtocol) -> None:
    while True:
        await app.send({"type": "websocket.send", "bytes": bytes(65_536)})
        assert protocol.transport.get_write_buffer_size() <= 512 * 1024


async def test_of_a_flood_of_pings_the_last_is_answered() -> None:
    async with serving() as app:
        client = await app.connect()
        client.hold()
        protocol = app.protocol
        while protocol.writable.is_set():
            await app.send({"type": "websocket.send", "bytes": bytes(16_384)})
        before = protocol.transport.get_write_buffer_size()
        for number in range(100_000):
            client.writer.write(frame(PING, b"%08d" % number))
            if number % 10_000 == 0:
                await client.writer.drain()
        client.send(BINARY, b"done")
        app.receiving.set()
        await until(lambda: app.received)
        assert protocol.transport.get_write_buffer_size() <= before
        client.go_on()
        pongs: list[bytes] = []
        while not pongs or pongs[-1] != b"00099999":
            opcode, data = await client.frame()
            pongs += [data] if opcode == PONG else []
        assert len(pongs) < 100_000


async def test_a_ping_is_answered_at_once() -> None:
    async with serving() as app:
        client = await app.connect()
        client.send(PING, b"hello")
        assert await client.frame() == (PONG, b"hello")


async def test_small_messages_that_nobody_takes_are_bounded() -> None:
    async with serving() as app:
        client = await app.connect()
        protocol = app.protocol
        burst = frame(BINARY, b"x") * 50_000
        client.writer.write(burst)
        await until(lambda: protocol.read_paused)
        assert protocol.queue.qsize() <= AHEAD // 512 + websocket_protocol.SLICE // 7 + 1
        app.receiving.set()
        await until(lambda: len(app.received) == 50_000)
        assert protocol._waiting == 0
        assert not protocol.read_paused


async def test_a_flood_of_frames_lets_others_have_their_turn() -> None:
    """Between two slices of it the loop goes round, and yet all of it is read."""
    async with serving() as app:
        client = await app.connect()
        app.receiving.set()
        protocol, turns = app.protocol, 0
        client.writer.write(frame(PONG) * 100_000)
        client.send(BINARY, b"done")
        while not app.received:
            turns += bool(protocol._unparsed)
            await asyncio.sleep(0)
        assert turns > 100_000 * 6 // websocket_protocol.SLICE // 2


async def test_fragments_weigh_no_more_than_their_bytes() -> None:
    async with serving() as app:
        client = await app.connect()
        app.receiving.set()
        client.writer.write(frame(TEXT, "gr\u00fc".encode()[:3], fin=False))
        client.writer.write(frame(CONTINUATION, b"", fin=False) * 200_000)
        client.send(PING, b"between")
        client.writer.write(frame(CONTINUATION, "gr\u00fc\u00dfe".encode()[3:]))
        await until(lambda: app.received)
        assert app.received == [{"type": "websocket.receive", "text": "gr\u00fc\u00dfe"}]
        assert await client.frame() == (PONG, b"between")
        assert app.protocol.frames == []


HOSTILE = {
    "bad UTF-8": (frame(TEXT, b"\xff\xfe"), 1007),
    "half a character": (frame(TEXT, b"\xc3"), 1007),
    "too long": (frame(BINARY, bytes(1001)), 1009),
    "too long in fragments": (
        frame(TEXT, b"x" * 900, fin=False) + frame(CONTINUATION, b"x" * 101),
        1009,
    ),
    "said to be endless": (b"\x82\xff" + struct.pack(">Q", 1 << 62) + bytes(4), 1009),
    "not masked": (b"\x81\x02hi", 1002),
    "a reserved bit": (b"\xc1\x82" + bytes(4) + b"hi", 1002),
    "an unknown opcode": (frame(3, b"hi"), 1002),
    "an unknown control opcode": (frame(11, b"hi"), 1002),
    "a fragmented ping": (frame(PING, b"hi", fin=False), 1002),
    "a long ping": (frame(PING, bytes(126)), 1002),
    "a continuation of nothing": (frame(CONTINUATION, b"hi"), 1002),
    "a message within a message": (frame(TEXT, b"a", fin=False) + frame(TEXT, b"b"), 1002),
    "a close of one byte": (frame(CLOSE, b"x"), 1002),
    "a close with a forbidden code": (frame(CLOSE, struct.pack(">H", 1005)), 1002),
    "a close with bad UTF-8": (frame(CLOSE, struct.pack(">H", 1000) + b"\xff"), 1007),
}


@pytest.mark.parametrize("case", HOSTILE)
async def test_hostile_frames_end_the_connection_with_their_code(case: str) -> None:
    sent, code = HOSTILE[case]
    async with serving() as app:
        app.limit = 1000
        app.receiving.set()
        client = await app.connect()
        client.send(BINARY, b"before")
        # What follows is swallowed: otherwise a reset could take the close frame with it.
        client.writer.write(sent + frame(BINARY, b"behind") * 10_000)
        assert (await client.until_close())[1] == code
        assert await asyncio.wait_for(client.reader.read(), 10) == b""
        client.close()
        await until(lambda: app.gone and len(app.received) == 2)
        assert app.received[0]["bytes"] == b"before"
        assert app.received[1]["type"] == "websocket.disconnect"


async def test_a_close_is_answered_with_the_same_code() -> None:
    async with serving() as app:
        client = await app.connect()
        app.receiving.set()
        client.send(CLOSE, struct.pack(">H", 4321) + b"why not")
        assert (await client.until_close())[1:] == (4321, "why not")
        await until(lambda: app.gone)
        assert (app.received[0]["code"], app.received[0]["reason"]) == (4321, "why not")


async def test_a_client_that_reads_nothing_does_not_hold_its_end_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket_protocol, "CLOSE_S", 0.3)
    async with serving() as app:
        client = await app.connect()
        client.hold()
        while app.protocol.writable.is_set():
            await app.send({"type": "websocket.send", "bytes": bytes(65_536)})
        await asyncio.wait_for(app.send({"type": "websocket.close", "code": 1000}), 5)
        app.receiving.set()
        await until(lambda: app.gone)


REFUSED = {
    "no key": ("GET", "HTTP/1.1", "Sec-WebSocket-Version: 13\r\n", 400),
    "a bad key": ("GET", "HTTP/1.1", "Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n", 400),
    "no version": ("GET", "HTTP/1.1", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n", 400),
    "an old version": (
        "GET",
        "HTTP/1.1",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 8\r\n",
        400,
    ),
    "a long line": ("GET", "HTTP/1.1", f"Sec-WebSocket-Protocol: {'x' * 9000}\r\n", 400),
    "POST": ("POST", "HTTP/1.1", "Content-Length: 0\r\n", 405),
    "HTTP/1.0": ("GET", "HTTP/1.0", "", 400),
    "a body": ("GET", "HTTP/1.1", "Content-Length: 4\r\n\r\nbody", 400),
    "a chunked body": ("GET", "HTTP/1.1", "Transfer-Encoding: chunked\r\n\r\n0\r\n", 400),
    "a frame behind it": (
        "GET",
        "HTTP/1.1",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n\x81\x80",
        400,
    ),
    "a request behind it": (
        "GET",
        "HTTP/1.1",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        "GET /healthz HTTP/1.1\r\nHost: x\r\n",
        400,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_handshakes_that_are_none(case: str) -> None:
    method, version, rest, status = REFUSED[case]
    head = f"{method} /x {version}\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
    async with serving() as app:
        found, client = await app.ask((head + rest + "\r\n").encode("latin-1"))
        assert found == status
        assert list(json.loads(await asyncio.wait_for(client.reader.read(), 20))) == ["error"]
        assert app.scope == {}


async def test_what_is_sent_before_the_answer_ends_the_handshake() -> None:
    async with serving() as app:
        app.accepting = False
        reader, writer = await asyncio.open_connection(app.address.host, app.address.port)
        app.writers.append(writer)
        writer.write(handshake("/x"))
        await until(lambda: app.scope)
        # More than one read takes: a reset would take the answer with it.
        writer.write(frame(TEXT, bytes(4 << 20)))
        answer = await asyncio.wait_for(reader.read(), 20)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1") == 1
        assert EARLY.encode() in answer
        writer.transport.abort()
        await until(lambda: app.gone)


@pytest.mark.parametrize("stopping", [False, True], ids=["who talks early", "at a stop"])
async def test_a_handshake_that_is_refused_while_it_waits_is_over(
    monkeypatch: pytest.MonkeyPatch, *, stopping: bool
) -> None:
    """The application learns it at once, and once, also of a client that reads and stays."""
    monkeypatch.setattr(websocket_protocol, "CLOSE_S", 600)
    async with serving() as app:
        app.accepting = False
        asking = asyncio.create_task(app.ask(handshake("/x")))
        await until(lambda: app.scope)
        protocol = app.protocol
        if stopping:
            protocol.shutdown()
        else:
            app.writers[-1].write(frame(TEXT, b"early"))
        status, client = await asking
        assert status == (503 if stopping else 400)
        await until(lambda: not protocol.tasks)
        assert app.received == [{"type": "websocket.disconnect", "code": LOST}]
        with pytest.raises(ClientDisconnected):
            await app.send({"type": "websocket.accept"})
        assert not client.writer.is_closing()
        assert protocol in protocol.connections


async def test_header_lines_longer_than_the_library_reads_pass() -> None:
    async with serving() as app:
        cookie = "x" * 20_000
        status, client = await app.ask(handshake("/x?a=b%20c", f"Cookie: {cookie}", "X-A: \xe9"))
        assert status == 101
        assert app.scope["query_string"] == b"a=b%20c"
        assert (b"cookie", cookie.encode()) in app.scope["headers"]
        assert (b"x-a", "\xe9".encode()) in app.scope["headers"]
        client.close()


async def test_a_stop_tells_who_waits_for_an_answer() -> None:
    async with serving() as app:
        app.accepting = False
        asking = asyncio.create_task(app.ask(handshake("/x")))
        await until(lambda: app.scope)
        closing = asyncio.create_task(app.server.close())
        status, client = await asking
        assert status == 503
        assert b"error" in await client.reader.read()
        client.close()
        await closing


async def test_a_stop_does_not_wait_for_clients_that_read_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve, "GRACE_S", 1)
    async with serving() as app:
        client = await app.connect()
        client.hold()
        protocol = app.protocol
        while protocol.writable.is_set():
            await app.send({"type": "websocket.send", "bytes": bytes(65_536)})
        app.receiving.set()
        await asyncio.wait_for(app.server.close(), 20)
        await until(lambda: protocol.disconnected)
        assert app.received[-1]["type"] == "websocket.disconnect"
