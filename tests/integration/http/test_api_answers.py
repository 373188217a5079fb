"""What all answers have in common, for every path that is served and some that are not."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.http.routes import mcp, wrk
from boxd.http.routes.commands import exec as exec_api
from boxd.http.server import serve
from tests.harness.http.commands import header, marked, open_exec
from tests.harness.http.portserver import listening
from tests.harness.http.rawhttp import Answer, Request, ask
from tests.harness.http.web import ALICE, serve_web
from tests.harness.http.websocket import BINARY, connected
from tests.harness.wait import until

if TYPE_CHECKING:
    from boxd.http.routes.route import Route
    from tests.harness.http.portserver import Visit
    from tests.harness.http.web import Web

NOWHERE = ("/", "/v1", "/v1/", "/v1/nothing", "/v1/boxes/", "/v1/boxes/web/term/x", "/v2/boxes")


def target(route: Route) -> str:
    """A path of the route."""
    path = route.path.replace("...", "")
    names = {"{box}": "web", "{ref}": "web", "{spec}": "web", "{port}": "80", "{canvas}": "x"}
    names |= {"{path}": "x", "{name}": "x", "{number}": "1", "{id}": "0f3a"}
    names |= {"{command}": "0123456789abcdef", "{fingerprint}": "first"}
    for name, value in names.items():
        path = path.replace(name, value)
    assert "{" not in path, path
    return path


def common(answer: Answer) -> None:
    """What none may lack, and what none may have."""
    told = email.utils.parsedate_to_datetime(answer.headers["date"])
    assert abs(datetime.now(UTC) - told) < timedelta(minutes=1)
    assert "server" not in answer.headers
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


def refusal(answer: Answer) -> None:
    """As `common`, of a refusal with a body."""
    common(answer)
    assert answer.headers["content-type"] == "application/json"
    assert answer.error
    assert int(answer.headers["content-length"]) == len(answer.body)


async def sent(web: Web, method: str, path: str, *, shown: bool = True) -> Answer:
    """One request, with a key or without."""
    lines = (("X-Api-Key", web.key),) if shown else ()
    return await ask(web.address.host, web.address.port, Request(method, path, lines))


async def test_every_refusal_of_a_websocket_is_json_with_its_status(web: Web) -> None:
    """Of paths that take them, of those that do not, and of those that are not there."""
    paths = {target(route): route.socket for route in web.api.routes}
    for path in NOWHERE:
        paths[path] = False
    for path, takes in paths.items():
        without = await sent(web, "WS", path, shown=False)
        assert without.status == (401 if takes else 404), path
        refusal(without)
    for path in ("/v1/boxes/web/term", "/v1/boxes/web/proxy/80/x"):
        answer = await sent(web, "WS", path)
        assert answer.status == 404, path
        refusal(answer)


async def test_head_is_answered_as_get_without_the_body(web: Web) -> None:
    await web.operations.boxes.up(ALICE, "web")
    await web.client().put("/v1/wrk/x", content=b"hello")
    paths = {target(route) for route in web.api.routes if "GET" in route.methods} | {*NOWHERE}
    for path in paths - {"/v1/mcp"}:
        got, head = await sent(web, "GET", path), await sent(web, "HEAD", path)
        assert head.status == got.status, path
        assert head.body == b""
        # Boxes grow older from one answer to the next.
        lengths = () if path.startswith("/v1/boxes") else ("content-length",)
        for name in ("content-type", "etag", "allow", *lengths):
            assert head.headers.get(name) == got.headers.get(name), (path, name)
        common(head)
        common(got)


async def test_a_method_that_is_not_served_is_405_with_those_that_are(web: Web) -> None:
    served: dict[str, set[str]] = {}
    for route in web.api.routes:
        if route.methods:
            served.setdefault(target(route), set()).update(route.methods)
    for path, methods in served.items():
        answer = await sent(web, "PATCH", path)
        assert answer.status == 405, path
        refusal(answer)
        allowed = set(answer.headers["allow"].split(", "))
        assert methods <= allowed, path
        assert allowed - methods <= {"HEAD"}, path
    for path in NOWHERE:
        answer = await sent(web, "PATCH", path)
        assert answer.status == 404
        refusal(answer)


async def test_what_the_parser_refuses_looks_like_every_refusal(web: Web) -> None:
    for method, path in (("GET", "no-slash"), ("CONNECT", "x:1"), ("TRACE", "/"), ("G@T", "/")):
        refusal(await sent(web, method, path))


PAUSES = {
    "an upload": ("PUT /v1/wrk/x", "text/plain", b"hel"),
    "the header of an exec": ("POST /v1/exec/web", "application/x-svc-exec", b'{"cmd": "tr'),
    "a command": ("POST /v1/exec/web", "text/plain", b"tru"),
    "a message": ("POST /v1/mcp", "application/json", b'{"jsonrpc"'),
}


@pytest.mark.parametrize("case", PAUSES)
async def test_a_client_that_pauses_for_too_long_is_told(
    web: Web, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wrk, "UPLOAD_IDLE", 0.2)
    for module in (exec_api, mcp):
        monkeypatch.setattr(module, "IDLE_S", 0.2)
    line, kind, begun = PAUSES[case]
    reader, writer = await web.connect()
    head = (
        f"{line} HTTP/1.1\r\nHost: api.test\r\nX-Api-Key: {web.key}\r\nContent-Length: 100\r\n"
        f"Accept: application/json, text/event-stream\r\nContent-Type: {kind}\r\n\r\n"
    )
    writer.write(head.encode() + begun)
    answer = await asyncio.wait_for(reader.readuntil(b"}"), 20)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'{"error": "the request body paused for 0.2 s' in answer
    assert b"connection: close" in answer
    writer.close()
    assert (await sent(web, "GET", "/v1/wrk/x")).status == 404
    assert await web.operations.boxes.list_boxes(ALICE) == []


async def test_a_stop_ends_long_streams_in_time_and_honestly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve, "GRACE_S", 1)
    with tempfile.TemporaryDirectory(prefix="web-") as name:
        async with serve_web(Path(name)) as web:
            await _stop_under_streams(web)


async def _drip(visit: Visit) -> None:
    await visit.answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n")
    await visit.reader.read()


async def _stop_under_streams(web: Web) -> None:
    """A command, a terminal, and an answer of an app that goes on and on."""
    await web.operations.boxes.up(ALICE, "web")
    body = header("echo begun; sleep 1000", env={"EXEC_MARK": "streams"})
    command, _ = await open_exec(web, body)
    await asyncio.wait_for(command.readuntil(b"event: stdout"), 20)
    terminal = await connected(web, f"/v1/boxes/web/term?key={web.key}")
    terminal.send(BINARY, b"EXEC_MARK=streams exec sleep 1000\n")
    await until(lambda: len(marked("streams")) >= 2)
    async with listening(_drip) as app:
        reader, writer = await web.connect()
        path = f"/v1/boxes/web/proxy/{app.port}/"
        line = f"GET {path} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {web.key}\r\n\r\n"
        writer.write(line.encode())
        await asyncio.wait_for(reader.readuntil(b"2\r\nhi\r\n"), 20)
        await asyncio.wait_for(web.server.close(), 20)
        left = b""
        with contextlib.suppress(ConnectionResetError):
            left = await asyncio.wait_for(reader.read(), 10)
        assert b"0\r\n\r\n" not in left
        await until(lambda: app.open == 0)
    assert (await terminal.until_close())[1] == 1012
    ended = b""
    with contextlib.suppress(ConnectionResetError):
        ended = await asyncio.wait_for(command.read(), 10)
    assert b"event: exit" not in ended
    assert not ended.endswith(b"0\r\n\r\n")
    await until(lambda: not marked("streams"))
    assert web.lifecycle.attachments.held() == set()
