"""No request reaches an app in a box that its sender's proxy did not see as that request.

The app records what comes, byte by byte, and is strict: whatever arrives must be one request of the
plainest form, or the beginning of one that was then cut.
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from tests.harness.http.malformed import LENIENT, LINES, REFUSED
from tests.harness.http.web import ALICE
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.http.web import Web

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_REQUEST_LINE = re.compile(rb"[!-~]+ /[!-~]* HTTP/1\.1")
_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ([\t -~\x80-\xff]*)")
_CHUNK = re.compile(rb"([0-9a-f]{1,8})\r\n")


class Incomplete(Exception):
    """More has to come."""


def one_request(data: bytes) -> tuple[bytes, bytes]:
    """Target and body of bytes that are exactly one request; AssertionError for anything else."""
    head, end, rest = data.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    if not end:
        raise Incomplete
    assert _REQUEST_LINE.fullmatch(lines[0]), lines[0]
    found = [_LINE.fullmatch(line) for line in lines[1:]]
    assert all(found), lines
    named = [(match[1].lower(), match[2]) for match in found if match]
    lengths = [value for name, value in named if name == b"content-length"]
    encodings = [value for name, value in named if name == b"transfer-encoding"]
    assert len([name for name, _ in named if name == b"host"]) == 1
    assert [name for name, _ in named if name in (b"upgrade", b"x-api-key", b"te")] == []
    assert len(lengths) + len(encodings) <= 1
    assert encodings in ([], [b"chunked"])
    body = _unchunked(rest) if encodings else rest
    if lengths:
        assert re.fullmatch(rb"[0-9]+", lengths[0])
    if not encodings:
        length = int(lengths[0]) if lengths else 0
        if len(body) < length:
            raise Incomplete
        assert len(body) == length, body
    return lines[0].split(b" ")[1], body


def _unchunked(rest: bytes) -> bytes:
    body = b""
    while True:
        size = _CHUNK.match(rest)
        if size is None:
            assert re.fullmatch(rb"[0-9a-f]{0,8}\r?", rest), rest
            raise Incomplete
        length, rest = int(size[1], 16), rest[size.end() :]
        if len(rest) < length + 2:
            raise Incomplete
        assert rest[length : length + 2] == b"\r\n", rest
        if length == 0:
            assert rest[2:] == b"", rest
            return body
        body, rest = body + rest[:length], rest[length + 2 :]


class App:
    """What listens in the box."""

    def __init__(self) -> None:
        self.port = 0
        self.hasty = False
        """Answers when it has seen the header lines, and looks at nothing further."""
        self.came: list[bytearray] = []
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Records one connection to its end, and answers when a request is complete."""
        record = bytearray()
        self.came.append(record)
        self.open += 1
        answered = False
        try:
            while data := await reader.read(65536):
                record += data
                if self.hasty:
                    writer.write(ANSWER)
                    writer.write_eof()
                    await reader.read()
                try:
                    one_request(bytes(record))
                except (Incomplete, AssertionError):
                    continue
                if not answered:
                    answered = True
                    writer.write(ANSWER)
        except ConnectionError:
            pass
        finally:
            self.open -= 1
            writer.close()

    def requests(self) -> list[tuple[bytes, bytes]]:
        """Whole requests that came; anything that is not the beginning of one is an error."""
        found = []
        for record in self.came:
            try:
                found.append(one_request(bytes(record)))
            except Incomplete:
                continue
        return found


@asynccontextmanager
async def app_in_box(web: Web) -> AsyncIterator[App]:
    """A box `web` with the app."""
    await web.operations.boxes.up(ALICE, "web")
    app = App()
    listener = await asyncio.start_server(app.serve, "127.0.0.1", 0)
    app.port = listener.sockets[0].getsockname()[1]
    try:
        yield app
    finally:
        listener.close()
        await listener.wait_closed()


def begun(web: Web, app: App, method: bytes = b"POST", rest: bytes = b"first") -> bytes:
    """The beginning of a request for the app, with host and key."""
    return b"%s /v1/boxes/web/proxy/%d/%s HTTP/1.1\r\nHost: api.test\r\nX-Api-Key: %s\r\n" % (
        method,
        app.port,
        rest,
        web.key.encode(),
    )


async def answers(web: Web, sent: bytes) -> list[tuple[int, bytes]]:
    """Status and body of all answers until the server closes; each must be well-formed."""
    reader, writer = await web.connect()
    writer.write(sent)
    data = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    found = []
    while data:
        head, end, data = data.partition(b"\r\n\r\n")
        assert end, head
        assert head.startswith(b"HTTP/1.1 "), head
        status = int(head.split(b" ")[1])
        if status == 100:
            continue
        length = re.search(rb"(?i)\r\ncontent-length: ([0-9]+)(\r\n|$)", head)
        assert length is not None, head
        body, data = data[: int(length[1])], data[int(length[1]) :]
        assert len(body) == int(length[1])
        found.append((status, body))
    return found


@pytest.mark.parametrize("case", REFUSED)
async def test_ambiguous_requests_do_not_pass_the_proxy(web: Web, case: str) -> None:
    async with app_in_box(web) as app:
        behind = begun(web, app, b"GET", b"behind") + b"\r\n"
        found = await answers(web, begun(web, app) + REFUSED[case] + behind)
        assert [status for status, _ in found] in ([400], [431]), found
        assert list(json.loads(found[0][1])) == ["error"]
        await until(lambda: app.open == 0)
        assert app.requests() == []
        assert b"behind" not in b"".join(app.came)


@pytest.mark.parametrize("case", LENIENT)
async def test_lenient_forms_pass_the_proxy_as_one_plain_request(web: Web, case: str) -> None:
    sent, body = LENIENT[case]
    async with app_in_box(web) as app:
        last = begun(web, app, b"GET", b"last") + b"Connection: close\r\n\r\n"
        found = await answers(web, begun(web, app) + sent + last)
        await until(lambda: app.open == 0)
        if [status for status, _ in found] == [400]:
            assert app.requests() == []
        else:
            assert app.requests()[0] == (b"/first", body)
            assert app.requests()[1:] in ([], [(b"/last", b"")])
            assert [status for status, _ in found] == [200] * len(app.requests())


@pytest.mark.parametrize("line", LINES)
async def test_malformed_request_lines_do_not_pass_the_proxy(web: Web, line: bytes) -> None:
    async with app_in_box(web) as app:
        prefix = b"/v1/boxes/web/proxy/%d" % app.port
        rest = begun(web, app).partition(b"\r\n")[2] + b"\r\n"
        for target in (b"/healthz", b"/a"):
            found = await answers(web, line.replace(target, prefix + target) + b"\r\n" + rest)
            assert [status for status, _ in found] == [400]
        assert app.came == []


async def test_connect_and_trace_do_not_pass_the_proxy(web: Web) -> None:
    async with app_in_box(web) as app:
        for method in (b"CONNECT", b"TRACE"):
            found = await answers(web, begun(web, app, method) + b"\r\n")
            assert [status for status, _ in found] == [405]
        assert app.came == []


async def test_a_body_behind_a_refusal_is_no_request(web: Web) -> None:
    """Without a key, the body of a request for the app holds another one with a key."""
    async with app_in_box(web) as app:
        inner = begun(web, app, b"GET", b"inner") + b"\r\n"
        outer = b"POST /v1/boxes/web/proxy/%d/outer HTTP/1.1\r\nHost: api.test\r\n" % app.port
        framed = (
            b"Content-Length: %d\r\n\r\n%s" % (len(inner), inner),
            b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner),
        )
        for sent in framed:
            assert [status for status, _ in await answers(web, outer + sent)] == [401]
        assert app.came == []


async def test_a_body_that_the_app_does_not_read_is_no_request(web: Web) -> None:
    """The app answers at once: what is left of the body is not what the connection goes on with."""
    async with app_in_box(web) as app:
        app.hasty = True
        inner = begun(web, app, b"GET", b"inner") + b"\r\n"
        number = 4_000_000 // len(inner)
        sent = b"Content-Length: %d\r\n\r\n%s" % (len(inner) * number, inner * number)
        found = await answers(web, begun(web, app) + sent)
        assert [status for status, _ in found] == [200]
        await until(lambda: app.open == 0)
        assert len(app.came) == 1
        assert app.came[0].startswith(b"POST /first ")


async def test_a_client_that_stops_within_its_body_completes_no_request(web: Web) -> None:
    async with app_in_box(web) as app:
        for sent in (
            b"Content-Length: 9\r\n\r\nhello",
            b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        ):
            reader, writer = await web.connect()
            writer.write(begun(web, app) + sent)
            writer.write_eof()
            answer = await asyncio.wait_for(reader.read(), 20)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
            writer.close()
        await until(lambda: app.open == 0)
        assert app.requests() == []


async def test_a_websocket_for_an_app_is_no_way_for_other_requests(web: Web) -> None:
    """What stands behind a request to upgrade is neither frames nor a request to anybody."""
    async with app_in_box(web) as app:
        upgrade = (
            b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        )
        behind = begun(web, app, b"GET", b"behind") + b"\r\n"
        for lines in (b"", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"):
            sent = begun(web, app, b"GET") + upgrade + lines + b"\r\n" + behind
            assert [status for status, _ in await answers(web, sent)] == [400]
        assert app.came == []
