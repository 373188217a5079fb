"""Request framing on raw sockets: what a proxy in front and this server could read differently."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, cast

import pytest

from boxd.http.server import connection_limits, protocol
from tests.harness.http.malformed import LENIENT, LINES, REFUSED
from tests.harness.wait import until

if TYPE_CHECKING:
    from tests.harness.http.web import Web

HOST = b"Host: x\r\n"


async def exchange(web: Web, sent: bytes, *, half_close: bool = True) -> bytes:
    """Sends bytes as they are; everything that comes back until the server closes."""
    reader, writer = await web.connect()
    writer.write(sent)
    if half_close:
        writer.write_eof()
    try:
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


def statuses(answer: bytes) -> list[int]:
    """Status codes of all answers in a row."""
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]


def key(web: Web) -> bytes:
    """The header line that shows the owner's key."""
    return b"X-Api-Key: " + web.key.encode() + b"\r\n"


@pytest.mark.parametrize("case", REFUSED)
async def test_ambiguous_requests_are_refused_and_the_connection_closed(
    web: Web, case: str
) -> None:
    begin = b"PUT /v1/wrk/smuggled HTTP/1.1\r\n" + HOST + key(web)
    behind = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = await exchange(web, begin + REFUSED[case] + behind, half_close=False)
    assert statuses(answer) in ([400], [431]), answer
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    assert b"content-type: application/json" in head
    assert list(json.loads(body)) == ["error"]
    assert (await web.client().get("/v1/wrk/smuggled")).status_code == 404


@pytest.mark.parametrize("line", LINES)
async def test_malformed_request_lines(web: Web, line: bytes) -> None:
    answer = await exchange(web, line + b"\r\n" + HOST + b"\r\n", half_close=False)
    assert statuses(answer) == [400]
    assert b'{"error": "' in answer


async def test_no_host_and_other_versions(web: Web) -> None:
    assert statuses(await exchange(web, b"GET /healthz HTTP/1.1\r\n\r\n")) == [400]
    assert statuses(await exchange(web, b"GET /healthz HTTP/1.0\r\n\r\n", half_close=False)) == [
        200
    ]
    chunked = b"POST /healthz HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert statuses(await exchange(web, chunked, half_close=False)) == [400]


async def test_connect_and_trace(web: Web) -> None:
    for line in (b"CONNECT x:80 HTTP/1.1", b"CONNECT /v1/boxes HTTP/1.1", b"TRACE / HTTP/1.1"):
        answer = await exchange(web, line + b"\r\n" + HOST + b"\r\n", half_close=False)
        assert statuses(answer) == [405]
        assert b"allow: " in answer


async def test_nothing_behind_a_refused_body_is_a_request(web: Web) -> None:
    """The body of a request without a key holds another request: it is not served."""
    inner = b"DELETE /v1/wrk/kept HTTP/1.1\r\n" + HOST + key(web) + b"\r\n"
    await web.client().put("/v1/wrk/kept", content=b"x")
    outer = (
        b"PUT /v1/wrk/x HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(inner) + inner
    )
    assert statuses(await exchange(web, outer, half_close=False)) == [401]
    assert (await web.client().get("/v1/wrk/kept")).content == b"x"


async def test_pipelined_requests_behind_a_refusal_without_a_body_are_judged_alone(
    web: Web,
) -> None:
    refused = b"GET /v1/boxes HTTP/1.1\r\n" + HOST + b"\r\n"
    served = b"GET /v1/boxes HTTP/1.1\r\n" + HOST + key(web) + b"Connection: close\r\n\r\n"
    answer = await exchange(web, refused + served + refused, half_close=False)
    assert statuses(answer) == [401, 200]


@pytest.mark.parametrize("case", LENIENT)
async def test_lenient_forms_are_refused_or_read_as_one_request(web: Web, case: str) -> None:
    sent, body = LENIENT[case]
    head = b"PUT /v1/wrk/f HTTP/1.1\r\n" + HOST + key(web)
    last = b"GET /v1/wrk/f HTTP/1.1\r\n" + HOST + key(web) + b"Connection: close\r\n\r\n"
    answer = await exchange(web, head + sent + last, half_close=False)
    assert statuses(answer) in ([201, 200], [201], [400])
    if statuses(answer) == [400]:
        assert (await web.client().get("/v1/wrk/f")).status_code == 404
    else:
        assert (await web.client().get("/v1/wrk/f")).content == body


async def test_a_request_that_never_completes_is_cut(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEADER_TIMEOUT_S", 0.2)
    for begun in (b"", b"GET /healthz HTT", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A"):
        assert await exchange(web, begun, half_close=False) == b""
    reader, writer = await web.connect()
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /heal")
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    assert statuses(answer) == [200]


async def test_a_slow_but_whole_request_is_served(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer is about headers: a body may take longer, an idle connection may wait."""
    monkeypatch.setattr(protocol, "HEADER_TIMEOUT_S", 0.3)
    reader, writer = await web.connect()
    writer.write(b"PUT /v1/wrk/f HTTP/1.1\r\n" + HOST + key(web) + b"Content-Length: 10\r\n\r\n")
    for _ in range(9):
        writer.write(b"x")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(1), 0.06)
    writer.write(b"x")
    assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).startswith(b"HTTP/1.1 201 ")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.readexactly(1), 0.5)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert statuses(await asyncio.wait_for(reader.read(), 10)) == [200]
    writer.close()


async def test_a_client_that_sends_on_after_a_refusal_gets_the_answer(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it still sends is swallowed for a while, and never becomes a request."""
    monkeypatch.setattr(protocol, "LINGER_IDLE_S", 0.5)
    monkeypatch.setattr(protocol, "LINGER_S", 60)  # how fast it sends is the machine's
    reader, writer = await web.connect()
    writer.write(b"PUT /v1/wrk/f HTTP/1.1\r\n" + HOST + b"Content-Length: 50000000\r\n\r\n")
    for _ in range(40):
        writer.write(bytes(1 << 20))
        await asyncio.wait_for(writer.drain(), 10)
    answer = await asyncio.wait_for(reader.read(), 10)
    assert statuses(answer) == [401]
    await until(lambda: writer.transport.is_closing() or reader.at_eof())
    writer.close()


@pytest.fixture
def only_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback is all that a test has, and the listener takes it for any other network."""
    monkeypatch.setattr(connection_limits, "is_exempt", lambda *_: False)
    monkeypatch.setattr(connection_limits, "PER_SOURCE", 20)
    monkeypatch.setattr(connection_limits, "STRANGERS", 50)


SLOW = {
    "nothing": b"",
    "half a header": b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A",
    "a body without a key": b"PUT /v1/wrk/f HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n",
    "an answered request": b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("case", SLOW)
async def test_idle_connections_do_not_keep_others_out(
    only_strangers: None, web: Web, case: str
) -> None:
    held = []
    for number in range(100):
        source = (f"127.0.0.{2 + number % 5}", 0)
        opened = await asyncio.open_connection(
            web.address.host, web.address.port, local_addr=source
        )
        opened[1].write(SLOW[case])
        held.append(opened)
    web.connections.extend(writer for _, writer in held)
    assert (await web.client().get("/v1/boxes")).status_code == 200
    server = web.server._server
    assert server is not None
    await until(lambda: len(server.server_state.connections) <= 50)


async def test_what_an_owner_is_served_is_never_cut_for_others(
    only_strangers: None, web: Web
) -> None:
    reader, writer = await web.connect()
    body = b'{"cmd": "cat"}\n'
    writer.write(
        b"POST /v1/exec/web HTTP/1.1\r\n" + HOST + key(web) + b"Transfer-Encoding: chunked\r\n"
        b"Content-Type: application/x-svc-exec\r\n\r\n%x\r\n%b\r\n" % (len(body), body)
    )
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    for _ in range(100):
        await web.connect()
    writer.write(b"3\r\nhi\n\r\n0\r\n\r\n")
    assert b'{"code": 0}' in await asyncio.wait_for(reader.readuntil(b'{"code": 0}'), 20)


async def test_one_owner_is_served_so_much_at_once(
    monkeypatch: pytest.MonkeyPatch, web: Web
) -> None:
    server = web.server._server
    assert server is not None
    state = cast("protocol.ListenerState", server.server_state)
    monkeypatch.setattr(state.limits, "_most", 8)
    put = b"PUT /v1/wrk/f%d HTTP/1.1\r\n" + HOST + key(web) + b"Content-Length: 1\r\n\r\n"
    opened = []
    for number in range(2):
        opened.append(await web.connect())
        opened[-1][1].write(put % number)
    await until(lambda: state.limits._busy.total() == 2)
    answer = await web.client().get("/v1/boxes")
    assert answer.status_code == 429
    assert "at most 2 requests of one owner" in answer.json()["error"]
    for reader, writer in opened:
        writer.write(b"x")
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    assert (await web.client().get("/v1/boxes")).status_code == 200
