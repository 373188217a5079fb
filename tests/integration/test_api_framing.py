"""Request framing on raw sockets: what a proxy in front and this server could read differently."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING

import pytest

from boxd.api import protocol
from tests.harness.wait import until

if TYPE_CHECKING:
    from tests.harness.http import Web

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


REFUSED = {
    "length and encoding": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "encoding and length": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "unequal lengths": b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "signed length": b"Content-Length: +5\r\n\r\nhello",
    "negative length": b"Content-Length: -5\r\n\r\nhello",
    "hex length": b"Content-Length: 0x5\r\n\r\nhello",
    "fractional length": b"Content-Length: 5.0\r\n\r\nhello",
    "empty length": b"Content-Length: \r\n\r\nhello",
    "unequal listed lengths": b"Content-Length: 5, 6\r\n\r\nhello!",
    "huge length": b"Content-Length: " + b"9" * 30 + b"\r\n\r\nhello",
    "space before the colon": b"Content-Length : 5\r\n\r\nhello",
    "encoding with a space": b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "unknown encoding": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "encoding list": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "identity": b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "two encodings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "vertical tab": b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "NUL in a value": b"X-A: a\0b\r\nContent-Length: 0\r\n\r\n",
    "NUL in a name": b"X\0A: b\r\nContent-Length: 0\r\n\r\n",
    "bare CR": b"X-A: a\rContent-Length: 9\r\nContent-Length: 0\r\n\r\n",
    "name with a space": b"X A: b\r\nContent-Length: 0\r\n\r\n",
    "no colon": b"nonsense\r\nContent-Length: 0\r\n\r\n",
    "second host": b"Host: y\r\nContent-Length: 0\r\n\r\n",
    "chunk size with a sign": b"Transfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n",
    "chunk size with a prefix": b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "negative chunk": b"Transfer-Encoding: chunked\r\n\r\n-1\r\nhello\r\n0\r\n\r\n",
    "chunk longer than said": b"Transfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n",
    "endless chunk size": b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 100_000,
    "too many lines": b"X: y\r\n" * 101 + b"Content-Length: 0\r\n\r\n",
    "64 KiB of headers": b"X: " + b"y" * 66_000 + b"\r\nContent-Length: 0\r\n\r\n",
}


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


@pytest.mark.parametrize(
    "line",
    [
        b"GET http://x/healthz HTTP/1.1",
        b"GET x HTTP/1.1",
        b"GET * HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"GET /a\x01b HTTP/1.1",
        b"GET /a b HTTP/1.1",
        b"GET /\xc3\xa9 HTTP/1.1",
        b"GET  /healthz HTTP/1.1",
        b"GET /healthz",
        b"GET /healthz HTTP/2.0",
        b"GET /healthz HTTP/11",
        b"G@T /healthz HTTP/1.1",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"PRI * HTTP/2.0",
    ],
)
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


async def test_lenient_forms_are_read_as_one_request(web: Web) -> None:
    """Equal doubled lengths in one line, folding and bare LF: one request, one answer."""
    for lines in (
        b"Content-Length: 2, 2\r\nConnection: close\r\n\r\nhi",
        b"X-A: a\r\n folded\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi",
        b"Content-Length: 2\nConnection: close\n\nhi",
    ):
        answer = await exchange(
            web, b"PUT /v1/wrk/f HTTP/1.1\r\n" + HOST + key(web) + lines, half_close=False
        )
        assert len(statuses(answer)) == 1
        if statuses(answer) != [400]:
            assert (await web.client().get("/v1/wrk/f")).content == b"hi"


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
    reader, writer = await web.connect()
    writer.write(b"PUT /v1/wrk/f HTTP/1.1\r\n" + HOST + b"Content-Length: 50000000\r\n\r\n")
    for _ in range(40):
        writer.write(bytes(1 << 20))
        await asyncio.wait_for(writer.drain(), 10)
    answer = await asyncio.wait_for(reader.read(), 10)
    assert statuses(answer) == [401]
    await until(lambda: writer.transport.is_closing() or reader.at_eof())
    writer.close()


async def test_idle_connections_do_not_hinder_others(web: Web) -> None:
    idle = [await web.connect() for _ in range(200)]
    assert (await web.client().get("/healthz")).status_code == 200
    for _, writer in idle:
        writer.close()
