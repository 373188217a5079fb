"""Ports of boxes over HTTP: what an app is asked, and what its client gets, on real connections."""

from __future__ import annotations

import asyncio
import re
import socket
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.lifecycle import dialling
from tests.harness.http.ports import ask
from tests.harness.http.portserver import OK, listening, saying, sent_headers, status_of
from tests.harness.http.web import ALICE, BOB
from tests.harness.wait import until

if TYPE_CHECKING:
    from tests.harness.http.portserver import Visit
    from tests.harness.http.web import Web


@pytest.fixture(params=["through the box's network", "through the tunnel"], autouse=True)
async def box(web: Web, request: pytest.FixtureRequest) -> str:
    """A running box `web`; its id."""
    web.backend.near = request.param == "through the box's network"
    return (await web.operations.boxes.up(ALICE, "web")).id


def head_of(web: Web, method: bytes, port: int, rest: bytes, *lines: bytes) -> bytes:
    """A request for a port of box `web`, with the owner's key."""
    first = b"%s /v1/boxes/web/proxy/%d/%s HTTP/1.1" % (method, port, rest)
    shown = b"X-Api-Key: " + web.key.encode()
    return b"\r\n".join((first, b"Host: api.test", shown, b"Connection: close", *lines, b"", b""))


async def test_a_request_arrives_as_it_was_sent(web: Web) -> None:
    rest = b"a//b/../%2f%2E;x=1/%zz?q=%41&&a=b+c&key=app&key&=&ws=x"
    async with listening() as app:
        lines = (b"X-One: 1", b"x-two:  a\tb ", b"X-One: 2", b"Accept: */*", b"Cookie: a=1")
        answer = await ask(web, head_of(web, b"GET", app.port, rest, *lines))
        assert (status_of(answer), answer.partition(b"\r\n\r\n")[2]) == (200, b"ok")
        assert (app.last.method, app.last.target) == (b"GET", b"/" + rest)
        assert app.last.lines == [
            (b"host", b"api.test"),
            (b"x-one", b"1"),
            (b"x-two", b"a\tb"),
            (b"x-one", b"2"),
            (b"accept", b"*/*"),
            (b"cookie", b"a=1"),
            (b"x-forwarded-for", b"127.0.0.1"),
            (b"x-forwarded-proto", b"http"),
            (b"x-forwarded-host", b"api.test"),
            (b"x-forwarded-prefix", b"/v1/boxes/web/proxy/%d" % app.port),
            (b"connection", b"close"),
        ]


@pytest.mark.parametrize(
    "method", [b"GET", b"POST", b"PATCH", b"QUERY", b"M-SEARCH", b"get", b"!x"]
)
async def test_any_method_goes_through(web: Web, method: bytes) -> None:
    async with listening() as app:
        body = b"hello"
        head = head_of(web, method, app.port, b"", b"Content-Length: 5")
        assert status_of(await ask(web, head + body)) == 200
        assert (app.last.method, app.last.body) == (method, body)


async def test_an_answer_arrives_as_it_was_sent(web: Web) -> None:
    answered = (
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
        b"HTTP/1.1 418 Teapot\r\nServer: app\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n"
        b"X-A: 1\r\nX-B: 2\r\nX-A: 3\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n"
        b"Connection: X-Private\r\nX-Private: no\r\nKeep-Alive: timeout=5\r\n\r\n"
        b"3\r\nabc\r\n2\r\nde\r\n0\r\nX-T: 1\r\n\r\n"
    )
    async with listening(saying(answered)) as app:
        answer = await ask(web, head_of(web, b"GET", app.port, b""))
        assert status_of(answer) == 418
        assert answer.partition(b"\r\n\r\n")[2] == b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        assert sent_headers(answer) == [
            (b"server", b"app"),
            (b"set-cookie", b"a=1"),
            (b"set-cookie", b"b=2"),
            (b"x-a", b"1"),
            (b"x-b", b"2"),
            (b"x-a", b"3"),
            (b"referrer-policy", b"same-origin"),
            (b"transfer-encoding", b"chunked"),
            (b"connection", b"close"),
        ]


async def test_nothing_listens(web: Web) -> None:
    async with listening() as app:
        port = app.port
    response = await web.client().get(f"/v1/boxes/web/proxy/{port}/")
    assert response.status_code == 502
    said = response.json()["error"]
    told = (
        f"nothing listens at port {port} of box web (dial 127.0.0.1:{port}: connection refused); "
    )
    assert said.startswith(told)
    assert response.headers["cache-control"] == "no-store"


async def test_bodies_of_requests_are_streamed(web: Web) -> None:

    async def echo(visit: Visit) -> None:
        await visit.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n")
        for _ in range(2):
            size = int((await visit.reader.readuntil(b"\r\n")).strip(), 16)
            await visit.answer(await visit.reader.readexactly(size))
            await visit.reader.readexactly(2)

    async with listening(echo) as app:
        reader, writer = await web.connect()
        head = head_of(web, b"POST", app.port, b"", b"Transfer-Encoding: chunked")
        writer.write(head + b"2\r\nab\r\n")
        assert (await reader.readuntil(b"\r\n\r\nab")).startswith(b"HTTP/1.1 200 ")
        writer.write(b"2\r\ncd\r\n")
        assert await reader.readexactly(2) == b"cd"
        writer.close()
        await until(lambda: app.open == 0)


async def test_an_answer_that_is_cut_is_no_whole_answer(web: Web) -> None:
    for framing in (
        b"Content-Length: 9\r\n\r\nabc",
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ):
        async with listening(saying(b"HTTP/1.1 200 OK\r\n" + framing)) as app:
            answer = await ask(web, head_of(web, b"GET", app.port, b""))
            assert status_of(answer) == 200
            assert not answer.endswith(b"0\r\n\r\n")
            body = answer.partition(b"\r\n\r\n")[2]
            if framing.startswith(b"Transfer"):  # in chunks as they came
                body = re.sub(rb"\d\r\n(.+?)\r\n", rb"\1", body)
            assert body == b"abc"


async def test_programs_that_listen_at_the_other_localhost(web: Web) -> None:
    async with listening(host="::1") as app:
        assert (await ask(web, head_of(web, b"GET", app.port, b""))).endswith(b"ok")


@pytest.mark.parametrize(
    ("answered", "status"),
    [
        (b"", 502),
        (b"HTTP/1.1", 502),
        (b"SSH-2.0-x\r\n", 502),
        (b"HTTP/1.1 999 Odd\r\n\r\n", 502),
        (b"HTTP/1.1 101 Switched\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000 + b"\r\n", 502),
        (b"HTTP/1.1 100 Go\r\n\r\n" * 20_000, 502),
        (b"HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\n", 204),
        (b"HTTP/1.1 304 Same\r\nContent-Length: 5\r\n\r\n", 304),
        (b"HTTP/1.0 200 OK\r\n\r\nto the end", 200),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more", 200),
    ],
)
async def test_answers_of_all_sorts(web: Web, answered: bytes, status: int) -> None:
    async with listening(saying(answered)) as app:
        answer = await ask(web, head_of(web, b"GET", app.port, b""))
        assert status_of(answer) == status
        body = answer.partition(b"\r\n\r\n")[2]
        if status == 502:
            assert body.startswith(b'{"error": "port %d of the box ' % app.port)
        else:
            assert body in (b"", b"ok", b"a\r\nto the end\r\n0\r\n\r\n")


async def test_head_has_the_length_and_no_body(web: Web) -> None:
    async with listening(saying(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")) as app:
        answer = await ask(web, head_of(web, b"HEAD", app.port, b""))
        assert dict(sent_headers(answer))[b"content-length"] == b"9"
        assert answer.endswith(b"\r\n\r\n")


async def test_the_same_connection_serves_further_requests(web: Web) -> None:
    async with listening() as app, web.client() as client:
        for _ in range(3):
            assert (await client.get(f"/v1/boxes/web/proxy/{app.port}/")).text == "ok"
        assert len(app.visits) == 3


async def test_a_client_that_goes_ends_the_request(web: Web, box: str) -> None:
    async def silent(visit: Visit) -> None:
        await visit.reader.read()

    async with listening(silent) as app:
        for sent in (b"", b"Content-Length: 10\r\n\r\nabc"):
            _, writer = await web.connect()
            writer.write(head_of(web, b"POST", app.port, b"")[:-2] + (sent or b"\r\n"))
            await until(lambda: app.open == 1)
            writer.transport.abort()
            await until(lambda: app.open == 0)
            await until(lambda: web.lifecycle.attachments.count(box) == 0)


async def test_an_answer_before_the_request_is_complete(web: Web) -> None:
    async def early(visit: Visit) -> None:
        await visit.answer(b"HTTP/1.1 413 Big\r\nContent-Length: 3\r\n\r\nbig")

    async with listening(early) as app:
        reader, writer = await web.connect()
        writer.write(head_of(web, b"POST", app.port, b"", b"Content-Length: 1000000000") + b"x" * 9)
        answer = await asyncio.wait_for(reader.read(), 20)
        assert (status_of(answer), answer[-3:]) == (413, b"big")
        writer.close()


async def test_an_answer_drips_through_as_it_comes(web: Web) -> None:
    step = asyncio.Event()

    async def drip(visit: Visit) -> None:
        await visit.answer(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for number in range(3):
            await visit.answer(b"data: %d\n\n" % number)
            await step.wait()
            step.clear()

    async with listening(drip) as app:
        reader, writer = await web.connect()
        writer.write(head_of(web, b"GET", app.port, b""))
        for number in range(3):
            await reader.readuntil(b"data: %d\n\n" % number)
            step.set()
        assert (await reader.read()).endswith(b"0\r\n\r\n")
        writer.close()


@pytest.mark.parametrize("port", ["0", "65536", "+80", "080", "80a", "", "-1", "%2B80", "8%300"])
async def test_what_is_no_port(web: Web, port: str) -> None:
    response = await web.client().get(f"/v1/boxes/web/proxy/{port}/")
    expected = 502 if port == "8%300" else 404
    assert response.status_code == expected, response.text


async def test_a_prefix_without_its_slash_leads_to_the_one_with_it(web: Web) -> None:
    async with listening() as app:
        path = f"/v1/boxes/web/proxy/{app.port}"
        response = await web.client().get(path + "?a=%41")
        assert response.status_code == 307
        assert response.headers["location"] == path + "/?a=%41"
        assert (await web.client(key="no").get(path)).status_code == 401
        assert (await web.client().post(path)).text == "ok"
        assert app.last.target == b"/"


async def test_a_box_by_id_and_boxes_of_others(web: Web, box: str) -> None:
    other = await web.new_key(BOB)
    async with listening() as app:
        for ref in ("web", box, box[:8]):
            assert (await web.client().get(f"/v1/boxes/{ref}/proxy/{app.port}/")).text == "ok"
            response = await web.client(other).get(f"/v1/boxes/{ref}/proxy/{app.port}/")
            assert response.status_code == 404
        assert (await web.client().get(f"/v1/boxes/no/proxy/{app.port}/")).status_code == 404


async def test_workspaces_are_never_read_from_the_query(web: Web, box: str) -> None:
    inside = (await web.operations.boxes.up(ALICE, "ws1/web")).id
    scoped = await web.new_key(scope="ws1")
    async with listening() as app:
        client = web.client(scoped)
        answer = await client.get(f"/v1/boxes/web/proxy/{app.port}/?ws=ws2&a=1")
        assert answer.text == "ok"
        assert app.last.target == b"/?ws=ws2&a=1"
        assert (await client.get(f"/v1/boxes/{inside}/proxy/{app.port}/")).text == "ok"
        assert (await client.get(f"/v1/boxes/{box}/proxy/{app.port}/")).status_code == 404
        await web.operations.boxes.remove(ALICE, inside)
        assert (await client.get(f"/v1/boxes/web/proxy/{app.port}/")).status_code == 404


async def test_a_revoked_key_ends_what_it_holds(web: Web, box: str) -> None:
    key = await web.new_key(name="short")

    async def begin(visit: Visit) -> None:
        await visit.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
        await visit.reader.read()

    async with listening(begin) as app:
        reader, writer = await web.connect()
        request = head_of(web, b"GET", app.port, b"").replace(web.key.encode(), key.encode())
        writer.write(request)
        await reader.readuntil(b"abc")
        await web.operations.keys.remove_key(ALICE, "short")
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()
        await until(lambda: app.open == 0)


async def test_a_download_is_never_held_in_memory(web: Web) -> None:
    size, piece = 256 * 1024 * 1024, bytes(1024 * 1024)
    sent = 0

    async def pour(visit: Visit) -> None:
        nonlocal sent
        await visit.answer(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while sent < size:
            await visit.answer(piece)
            sent += len(piece)

    async with listening(pour) as app:
        reader, writer = await web.connect()
        writer.write(head_of(web, b"GET", app.port, b""))
        await reader.readuntil(b"\r\n\r\n")
        stalled = app.last.writer.transport
        await until(lambda: stalled.get_write_buffer_size() > 0)
        received = 0
        while data := await reader.read(1024 * 1024):
            received += len(data)
            assert sent - received < 64 * 1024 * 1024
        assert received == size
        writer.close()


async def test_old_clients_see_that_an_answer_is_cut(web: Web) -> None:
    answered = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
    async with listening(saying(answered)) as app:
        request = head_of(web, b"GET", app.port, b"").replace(b"HTTP/1.1", b"HTTP/1.0")
        with pytest.raises(ConnectionResetError):
            await ask(web, request)
        app.handler = saying(answered + b"0\r\n\r\n")
        assert (await ask(web, request)).endswith(b"\r\n\r\nabc")
        app.handler = leaving
        assert b"502" in await ask(web, request)


async def leaving(visit: Visit) -> None:
    """Ends the connection without a word."""


async def test_a_client_that_wants_to_be_told_to_go_on(web: Web) -> None:
    async with listening() as app:
        reader, writer = await web.connect()
        lines = (b"Expect: 100-continue", b"Content-Length: 3")
        writer.write(head_of(web, b"PUT", app.port, b"", *lines))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert status_of(await reader.read()) == 200
        assert app.last.body == b"abc"
        writer.close()


async def test_a_port_that_never_answers(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialling, "DIAL_S", 0.2)
    web.backend.near = True
    with socket.socket() as full, socket.socket() as first:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        first.connect(full.getsockname())  # the only place in the queue; others are not heard
        port = full.getsockname()[1]
        response = await web.client().get(f"/v1/boxes/web/proxy/{port}/")
    assert response.status_code == 504
    assert response.json() == {"error": f"dial 127.0.0.1:{port}: timed out"}


async def test_an_app_that_does_not_read_holds_its_client_up(web: Web) -> None:
    size, piece = 256 * 1024 * 1024, bytes(1024 * 1024)
    read = asyncio.Event()

    async def wait(visit: Visit) -> None:
        await read.wait()
        await visit.read_body()
        await visit.answer(OK)

    async with listening(wait) as app:
        reader, writer = await web.connect()
        writer.write(head_of(web, b"POST", app.port, b"", b"Content-Length: %d" % size))
        sent = 0

        async def pour() -> None:
            nonlocal sent
            while sent < size:
                writer.write(piece)
                await writer.drain()
                sent += len(piece)

        pouring = asyncio.create_task(pour())
        await until(lambda: app.visits and writer.transport.get_write_buffer_size() > 0)
        assert sent < 64 * 1024 * 1024
        read.set()
        await pouring
        assert status_of(await reader.read()) == 200
        assert len(app.last.body) == size
        writer.close()
