"""The drive over HTTP when bodies end early, stores fail, clients go away or meet."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.harness.http.drives import names
from tests.harness.http.errors import error_of
from tests.harness.wait import until
from wrkfs.errors import Unavailable
from wrkfs.types import ROOT_INO, SetAttr

if TYPE_CHECKING:
    from tests.harness.http.web import Web
    from tests.plugins.strict_logs import AssertLogs


async def drain(client: httpx.AsyncClient, path: str) -> int:
    """Reads a whole answer piece by piece; the number of bytes."""
    async with client.stream("GET", path) as response:
        return sum([len(piece) async for piece in response.aiter_raw()])


async def test_concurrent_puts_leave_one_whole_file(web: Web) -> None:
    client = web.client()
    bodies = [bytes([n]) * (300_000 + n) for n in range(12)]
    answers = await asyncio.gather(*(client.put("/v1/wrk/f", content=one) for one in bodies))
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [201] + [204] * 11
    got = await client.get("/v1/wrk/f")
    assert got.content in bodies
    winner = answers[bodies.index(got.content)]
    assert got.headers["etag"] == winner.headers["etag"]


async def test_a_full_drive_is_507_and_changes_nothing(web: Web) -> None:
    volume = await web.drives.volume()
    client = web.client()
    await client.put("/v1/wrk/f", content=b"old")
    volume.meta.bytes_limit = volume.meta.bytes_used + 100_000
    full = await client.put("/v1/wrk/f", content=os.urandom(300_000))
    assert full.status_code == 507
    assert error_of(full)
    assert (await client.get("/v1/wrk/f")).content == b"old"
    assert await names(web) == [b"f"]
    assert volume.meta.bytes_used <= volume.meta.bytes_limit


async def test_a_store_that_is_out_is_503_and_changes_nothing(web: Web) -> None:
    volume = await web.drives.volume()
    client = web.client()
    await client.put("/v1/wrk/f", content=b"old")

    async def out(key: str) -> None:
        raise Unavailable("the object store does not answer")

    volume.blocks.before_put = out
    answer = await client.put("/v1/wrk/f", content=os.urandom(300_000))
    assert answer.status_code == 503
    volume.blocks.before_put = None
    assert (await client.get("/v1/wrk/f")).content == b"old"
    assert await names(web) == [b"f"]


async def test_a_file_that_cannot_be_read_on_is_cut_not_faked(web: Web) -> None:
    volume, client = await web.drives.volume(), web.client()
    await client.put("/v1/wrk/f", content=os.urandom(40 << 20))

    async def out(key: str) -> None:
        if not key.endswith("/0"):
            raise Unavailable("the object store does not answer")

    volume.blocks.before_get = out
    with pytest.raises(httpx.RemoteProtocolError, match="without sending complete message body"):
        await drain(client, "/v1/wrk/f")


async def cut_put(web: Web, headers: bytes, body: bytes, *, half_close: bool) -> bytes:
    """Begins a PUT of /v1/wrk/f, sends `body` and stops; the answer, if one came."""
    reader, writer = await web.connect()
    key = web.key.encode()
    writer.write(b"PUT /v1/wrk/f HTTP/1.1\r\nHost: x\r\nX-Api-Key: " + key + b"\r\n")
    writer.write(headers + b"\r\n\r\n" + body)
    await writer.drain()
    if not half_close:
        writer.transport.abort()
        return b""
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (b"Content-Length: 1000", b"x" * 999),
        (b"Content-Length: 1000000", b"x" * 500_000),
        (b"Content-Length: 5", b""),
        (b"Transfer-Encoding: chunked", b"5\r\nhello\r\n"),
        (b"Transfer-Encoding: chunked", b"5\r\nhel"),
        (b"Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n"),
        (b"Transfer-Encoding: chunked", b"zz\r\nhello\r\n0\r\n\r\n"),
    ],
)
@pytest.mark.parametrize("half_close", [True, False])
async def test_a_body_cut_short_leaves_the_old_file(
    web: Web, headers: bytes, body: bytes, half_close: bool
) -> None:
    client = web.client()
    await client.put("/v1/wrk/f", content=b"old")
    volume = await web.drives.volume()
    answer = await cut_put(web, headers, body, half_close=half_close)
    if half_close:
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b'{"error": "' in answer
    await until(lambda: len(volume.meta.nodes) == 2)
    assert (await client.get("/v1/wrk/f")).content == b"old"
    assert await names(web) == [b"f"]


async def test_a_client_that_goes_away_frees_what_it_wrote(web: Web) -> None:
    volume = await web.drives.volume()
    before = volume.meta.bytes_used
    await cut_put(web, b"Content-Length: 50000000", os.urandom(20 << 20), half_close=False)
    await until(lambda: volume.meta.bytes_used == before and len(volume.meta.nodes) == 1)


async def test_a_client_that_stops_reading_stops_the_reading_of_the_drive(web: Web) -> None:
    volume, client = await web.drives.volume(), web.client()
    await client.put("/v1/wrk/f", content=bytes(200 << 20))
    reader, writer = await web.connect()
    writer.write(f"GET /v1/wrk/f HTTP/1.1\r\nHost: x\r\nX-Api-Key: {web.key}\r\n\r\n".encode())
    await reader.readexactly(1000)
    # The file has 50 blocks; read-ahead and socket buffers hold some, never all of it.
    with pytest.raises(TimeoutError):
        await until(lambda: volume.blocks.gets > 30, deadline=2)
    writer.transport.abort()
    await until(lambda: not volume.meta.sustained)


async def test_refused_bodies_are_not_read(web: Web) -> None:
    reader, writer = await web.connect()
    writer.write(
        b"PUT /v1/wrk/f HTTP/1.1\r\nHost: x\r\nX-Api-Key: wrong\r\n"
        b"Content-Length: 1000000000\r\n\r\n" + b"x" * 100_000
    )
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close" in answer.lower()
    assert b"invalid API key" in answer


async def test_continue_is_sent_only_for_a_body_that_is_wanted(web: Web) -> None:
    for key, expected in ((web.key, b"HTTP/1.1 100 "), ("wrong", b"HTTP/1.1 401 ")):
        reader, writer = await web.connect()
        writer.write(
            f"PUT /v1/wrk/f HTTP/1.1\r\nHost: x\r\nX-Api-Key: {key}\r\n"
            "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n".encode()
        )
        assert (await asyncio.wait_for(reader.readline(), 10)).startswith(expected)
        writer.close()


async def test_one_connection_serves_many_requests(web: Web) -> None:
    reader, writer = await web.connect()
    request = (
        f"PUT /v1/wrk/f HTTP/1.1\r\nHost: x\r\nX-Api-Key: {web.key}\r\nContent-Length: 3\r\n\r\nabc"
        f"GET /v1/wrk/f HTTP/1.1\r\nHost: x\r\nX-Api-Key: {web.key}\r\n\r\n"
        f"DELETE /v1/wrk/f HTTP/1.1\r\nHost: x\r\nX-Api-Key: {web.key}\r\nConnection: close\r\n\r\n"
    )
    writer.write(request.encode())
    answers = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert [answers.count(b"HTTP/1.1 " + status) for status in (b"201", b"200", b"204")] == [1] * 3
    assert b"\r\n\r\nabc" in answers


async def test_a_file_that_shrinks_under_a_reader_comes_whole_as_it_was(web: Web) -> None:
    volume, client = await web.drives.volume(), web.client()
    await client.put("/v1/wrk/f", content=b"x" * (60 << 20))
    attr = await volume.fs.lookup(ROOT_INO, b"f")
    async with client.stream("GET", "/v1/wrk/f") as response:
        await volume.fs.setattr(attr.ino, SetAttr(size=1))
        came = await asyncio.wait_for(response.aread(), 30)
    assert response.headers["etag"] == f'"{attr.ino}-{attr.version}"'
    assert came == b"x" * (60 << 20)


async def test_bytes_that_vanish_under_a_reader_cut_the_answer(
    web: Web, assert_logs: AssertLogs
) -> None:
    volume, client = await web.drives.volume(), web.client()
    await client.put("/v1/wrk/f", content=bytes(60 << 20))
    reader, writer = await web.connect()
    writer.write(f"GET /v1/wrk/f HTTP/1.1\r\nHost: x\r\nX-Api-Key: {web.key}\r\n\r\n".encode())
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    assert b"content-length: 62914560\r\n" in head
    volume.blocks.objects.clear()
    with assert_logs("is missing"):
        rest = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    assert len(rest) < 60 << 20
