"""WebSockets to programs in boxes, with a client and servers of another implementation."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from boxd.http.server import websocket_protocol
from tests.harness.http.ports import app, echo
from tests.harness.http.portserver import listening, saying
from tests.harness.http.web import ALICE
from tests.harness.http.websocket import TEXT, frame, handshake
from tests.harness.wait import until

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection
    from websockets.asyncio.server import ServerConnection
    from websockets.http11 import Request, Response

    from tests.harness.http.portserver import Visit
    from tests.harness.http.web import Web

MIB = 1024 * 1024
SWITCHED = b"HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"


@pytest.fixture(params=["through the box's network", "through the tunnel"])
async def box(web: Web, request: pytest.FixtureRequest) -> str:
    """A running box `web`; its id."""
    web.backend.near = request.param == "through the box's network"
    return (await web.operations.boxes.up(ALICE, "web")).id


def client(web: Web, port: int, rest: str = "", **options: object) -> connect:
    """A client of that port, by the owner's key."""
    settings: dict[str, Any] = {"proxy": None, "compression": None}
    settings["additional_headers"] = {"X-Api-Key": web.key}
    url = f"ws://{web.address}/v1/boxes/web/proxy/{port}/{rest}"
    return connect(url, **(settings | options))


async def test_messages_go_both_ways(web: Web, box: str) -> None:
    messages: list[str | bytes] = ["", "text", "äöü\0", b"", b"\xff\0", b"x" * 3 * MIB, "y" * MIB]
    async with app(echo) as port, client(web, port, max_size=None) as socket:
        for message in messages:
            await socket.send(message)
            assert await socket.recv() == message
        await socket.send(["a", "b", "c"])
        assert await socket.recv() == "abc"


async def test_a_server_that_talks_first_and_fragments(web: Web, box: str) -> None:
    async def talk(server: ServerConnection) -> None:
        await server.send([b"one ", b"", b"message"])
        await server.send("bye")

    async with app(talk) as port, client(web, port) as socket:
        assert await socket.recv() == b"one message"
        assert await socket.recv() == "bye"
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 1000


async def test_the_handshake_arrives_without_credentials(web: Web, box: str) -> None:
    seen: list[Request] = []

    def look(_server: ServerConnection, request: Request) -> Response | None:
        seen.append(request)
        return None

    async with app(echo, process_request=look, subprotocols=["b", "c"]) as port:
        headers = {"Authorization": f"Bearer {web.key}", "Cookie": "a=1; svc_proxy=x; b=2"}
        rest = f"deep/%2f?x=1&k%65y={web.key}&key=app"
        subprotocols = ["a", "b", "c"]
        async with client(
            web,
            port,
            rest,
            additional_headers=headers,
            subprotocols=subprotocols,
            origin="http://o",
        ) as socket:
            assert socket.subprotocol == "b"
    assert seen[0].path == "/deep/%2f?x=1&key=app"
    headers_seen = seen[0].headers
    assert headers_seen["Cookie"] == "a=1; b=2"
    assert headers_seen["Origin"] == "http://o"
    assert "Authorization" not in headers_seen
    assert headers_seen["X-Forwarded-Prefix"] == f"/v1/boxes/web/proxy/{port}"
    assert headers_seen["X-Forwarded-Proto"] == "http"


@pytest.mark.parametrize(("code", "reason"), [(1000, ""), (4001, "why"), (3000, "ü" * 60)])
async def test_a_client_that_closes(web: Web, box: str, code: int, reason: str) -> None:
    ended: list[tuple[int | None, str | None]] = []

    async def wait(server: ServerConnection) -> None:
        await server.wait_closed()
        ended.append((server.close_code, server.close_reason))

    async with app(wait) as port:
        async with client(web, port) as socket:
            await socket.close(code, reason)
        await until(lambda: ended)
    assert ended == [(code, reason)]


@pytest.mark.parametrize(("code", "reason"), [(1000, ""), (1011, "broken"), (4999, "why")])
async def test_an_app_that_closes(web: Web, box: str, code: int, reason: str) -> None:
    async def leave(server: ServerConnection) -> None:
        await server.send("last")
        await server.close(code, reason)

    async with app(leave) as port, client(web, port) as socket:
        assert await socket.recv() == "last"
        await socket.wait_closed()
        assert (socket.close_code, socket.close_reason) == (code, reason)


async def test_an_app_that_dies(web: Web, box: str) -> None:
    async def die(server: ServerConnection) -> None:
        await server.send("last")
        server.transport.abort()

    async with app(die) as port, client(web, port) as socket:
        assert await socket.recv() == "last"
        await socket.wait_closed()
        assert (socket.close_code, socket.close_reason) == (
            1011,
            "the connection to the app was lost",
        )


async def test_a_client_that_vanishes(web: Web, box: str) -> None:
    gone = asyncio.Event()

    async def wait(server: ServerConnection) -> None:
        await server.wait_closed()
        gone.set()

    async with app(wait) as port, client(web, port) as socket:
        socket.transport.abort()
        await asyncio.wait_for(gone.wait(), 10)
        await until(lambda: web.lifecycle.attachments.count(box) == 0)


async def test_messages_that_are_too_big(web: Web, box: str) -> None:
    async def shout(server: ServerConnection) -> None:
        await server.recv()
        await server.send(b"x" * (16 * MIB + 1))
        await server.wait_closed()

    async with app(shout) as port, client(web, port, max_size=None) as socket:
        await socket.send("go")
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 1009


async def test_an_echo_that_reads_nothing_while_it_writes(web: Web, box: str) -> None:
    count, size = 64, 256 * 1024
    async with app(echo) as port, client(web, port, max_queue=None) as socket:

        async def send() -> None:
            for number in range(count):
                await socket.send(bytes([number]) * size)

        sending = asyncio.create_task(send())
        for number in range(count):
            assert await socket.recv() == bytes([number]) * size
        await sending


async def test_pings_stay_on_their_side(web: Web, box: str) -> None:
    async def ping(server: ServerConnection) -> None:
        await (await server.ping(b"to nobody else"))
        await server.send("answered")
        await server.wait_closed()

    async with app(ping) as port, client(web, port) as socket:
        assert await socket.recv() == "answered"
        await (await socket.ping())


async def refusal(web: Web, port: int, key: str | None = None) -> Response:
    """The answer of a handshake that fails."""
    shown = {"X-Api-Key": web.key if key is None else key}
    with pytest.raises(InvalidStatus) as refused:
        async with client(web, port, additional_headers=shown):
            pass
    return refused.value.response


async def test_an_app_that_refuses(web: Web, box: str) -> None:
    answer = b"HTTP/1.1 403 No\r\nX-Why: because\r\nContent-Type: text/x\r\n"
    answer += b"Transfer-Encoding: chunked\r\n\r\n3\r\nno!\r\n0\r\n\r\n"
    async with listening(saying(answer)) as server:
        response = await refusal(web, server.port)
    assert (response.status_code, response.body) == (403, b"no!")
    assert (response.headers["x-why"], response.headers["content-type"]) == ("because", "text/x")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        SWITCHED + b"\r\n",
        SWITCHED + b"Sec-WebSocket-Accept: x\r\n\r\n",
    ],
)
async def test_an_app_that_cannot_shake_hands(web: Web, box: str, answer: bytes) -> None:
    async with listening(saying(answer)) as server:
        response = await refusal(web, server.port)
    assert response.status_code == 502
    assert b'{"error": "port ' in bytes(response.body)


async def test_nobody_listens_or_is_known(web: Web, box: str) -> None:
    async with listening() as server:
        port = server.port
    assert (await refusal(web, port)).status_code == 502
    assert (await refusal(web, port, "")).status_code == 401
    assert (await refusal(web, 80808)).status_code == 404


async def test_a_key_that_is_revoked_ends_it(web: Web, box: str) -> None:
    key = await web.new_key(name="short")
    async with (
        app(echo) as port,
        client(web, port, additional_headers={"X-Api-Key": key}) as socket,
    ):
        await socket.send("x")
        assert await socket.recv() == "x"
        await web.operations.keys.remove_key(ALICE, "short")
        await socket.wait_closed()
        assert (socket.close_code, socket.close_reason) == (1008, "API key short was revoked")


async def test_a_client_that_leaves_during_the_handshake(web: Web, box: str) -> None:
    async def silent(visit: object) -> None:
        await asyncio.Event().wait()

    async with listening(silent) as server:
        opening = asyncio.create_task(open_and_wait(client(web, server.port)))
        await until(lambda: server.visits)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await until(lambda: web.lifecycle.attachments.count(box) == 0)


async def test_a_client_that_is_refused_during_the_handshake_holds_nothing(
    web: Web, box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the box nor its app, also while it has not hung up."""
    monkeypatch.setattr(websocket_protocol, "CLOSE_S", 600)

    async def silent(visit: Visit) -> None:
        await visit.reader.read()

    async with listening(silent) as server:
        reader, writer = await asyncio.open_connection(web.address.host, web.address.port)
        path = f"/v1/boxes/web/proxy/{server.port}/"
        writer.write(handshake(path, f"X-Api-Key: {web.key}"))
        await until(lambda: server.visits)
        writer.write(frame(TEXT, b"early"))
        async with asyncio.timeout(30):
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
            await server.last.gone.wait()
        await until(lambda: web.lifecycle.attachments.count(box) == 0)
        writer.transport.abort()


async def open_and_wait(opening: connect) -> None:
    """Holds it open."""
    connection: ClientConnection
    async with opening as connection:
        await connection.wait_closed()


async def test_a_client_that_closes_on_an_app_that_goes_on_talking(web: Web, box: str) -> None:
    """What the client had sent, and how it closed, reach an app that writes all the time."""
    messages = [bytes([number]) * 128 * 1024 for number in range(12)]
    heard: list[str | bytes] = []
    ended: list[tuple[int | None, str | None]] = []

    async def talk(server: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            while True:
                await server.send("tick")
                await asyncio.sleep(0)

    async def chatter(server: ServerConnection) -> None:
        talking = asyncio.create_task(talk(server))
        with suppress(ConnectionClosed):
            while True:
                heard.append(await server.recv())
        await talking
        ended.append((server.close_code, server.close_reason))

    async def listen(socket: ClientConnection) -> None:
        with suppress(ConnectionClosed):
            async for _ in socket:
                pass

    async with app(chatter, max_queue=1) as port, client(web, port) as socket:
        reading = asyncio.create_task(listen(socket))
        for message in messages:
            await socket.send(message)
        await socket.close(4001, "why")
        await until(lambda: ended)
        await reading
    assert heard == messages
    assert ended == [(4001, "why")]
