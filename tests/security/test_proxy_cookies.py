"""The cookie of the port proxy: where it opens a box, and everywhere that it must not."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from boxd.operations import preview_sessions
from tests.harness.http.portserver import PortServer, listening, saying
from tests.harness.http.web import ALICE, BOB
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.harness.http.portserver import Visit
    from tests.harness.http.web import Web

INVALID = {"error": "invalid API key"}


@pytest.fixture
async def box(web: Web) -> str:
    """A running box `web`; its id."""
    web.backend.near = True
    return (await web.operations.boxes.up(ALICE, "web")).id


@pytest.fixture
async def app() -> AsyncIterator[PortServer]:
    """A program in it."""
    async with listening() as server:
        yield server


def browser(web: Web, **headers: str) -> httpx.AsyncClient:
    """A client that shows no key; tests give it its cookies."""
    client = web.client(**headers)
    del client.headers["authorization"]
    return client


async def visit(web: Web, port: int, ref: str = "web", key: str | None = None) -> str:
    """The cookie of a first visit with `?key=`."""
    response = await browser(web).get(f"/v1/boxes/{ref}/proxy/{port}/?key={key or web.key}")
    assert response.status_code == 200, response.text
    found = re.match(r"svc_proxy=([A-Za-z0-9_-]{43}); ", response.headers["set-cookie"])
    assert found
    return found[1]


def shown(cookie: str) -> dict[str, str]:
    """Header lines of a browser that has a cookie."""
    return {"cookie": f"svc_proxy={cookie}"}


async def test_the_first_visit_sets_the_cookie(web: Web, box: str, app: PortServer) -> None:
    path = f"/proxy/{app.port}/"
    response = await browser(web).get(f"/v1/boxes/web{path}deep?a=1&key={web.key}")
    assert app.last.target == b"/deep?a=1"
    lines = response.headers.get_list("set-cookie")
    values = {line.split("; ")[0] for line in lines}
    assert len(values) == 1
    assert [line.split("; ")[1:] for line in lines] == [
        [f"Path=/v1/boxes/{box}{path}", "HttpOnly", "SameSite=Lax", "Max-Age=3600"],
        [f"Path=/v1/boxes/web{path}", "HttpOnly", "SameSite=Lax", "Max-Age=3600"],
    ]
    assert web.key not in str(response.headers)


async def test_behind_tls_other_sites_may_frame_it(web: Web, box: str, app: PortServer) -> None:
    path = f"/v1/boxes/{box}/proxy/{app.port}/"
    client = browser(web, **{"x-forwarded-proto": "https"})
    response = await client.get(f"{path}?key={web.key}")
    lines = response.headers.get_list("set-cookie")
    assert [line.split("; ", 1)[1] for line in lines] == [
        f"Path={path}; HttpOnly; Secure; SameSite=None; Max-Age=3600"
    ]
    assert app.last.values(b"x-forwarded-proto") == [b"https"]


async def test_headers_set_no_cookie(web: Web, box: str, app: PortServer) -> None:
    client, path = web.client(), f"/v1/boxes/web/proxy/{app.port}/"
    for query in ("", "?key=app", f"?key={web.key}"):
        assert "set-cookie" not in (await client.get(path + query)).headers
    assert app.last.target == b"/"


async def test_later_requests_need_no_key(web: Web, box: str, app: PortServer) -> None:
    cookie = await visit(web, app.port)
    for ref in ("web", box, box[:9]):
        response = await browser(web).get(
            f"/v1/boxes/{ref}/proxy/{app.port}/x?key=app",
            headers={"cookie": f"a=1; svc_proxy={cookie}; b=2"},
        )
        assert response.text == "ok"
        assert "set-cookie" not in response.headers
        assert app.last.target == b"/x?key=app"
        assert app.last.values(b"cookie") == [b"a=1; b=2"]


async def test_other_authorization_is_no_hindrance(web: Web, box: str, app: PortServer) -> None:
    cookie = await visit(web, app.port)
    headers = shown(cookie) | {"authorization": "Basic YTpi", "x-api-key": "the app's"}
    response = await browser(web).get(f"/v1/boxes/web/proxy/{app.port}/", headers=headers)
    assert response.text == "ok"
    for name in (b"authorization", b"x-api-key", b"cookie"):
        assert app.last.values(name) == []


async def refused(web: Web, path: str, cookie: str) -> None:
    """The cookie is good for nothing there, and so is any other one; both get the same bytes."""
    answers = set()
    for value in (cookie, "A" * 43):
        response = await browser(web).get(path, headers=shown(value))
        assert (response.status_code, response.json()) == (401, INVALID), path
        own = ("date", "x-request-id")
        lines = [line for line in response.headers.multi_items() if line[0] not in own]
        answers.add((response.content, tuple(lines)))
    assert len(answers) == 1


async def test_the_cookie_opens_nothing_else(web: Web, box: str, app: PortServer) -> None:
    other = (await web.operations.boxes.up(ALICE, "other")).id
    foreign = (await web.operations.boxes.up(BOB, "web")).id
    cookie = await visit(web, app.port)
    async with listening() as second:
        paths = [
            f"/v1/boxes/web/proxy/{second.port}/",
            f"/v1/boxes/other/proxy/{app.port}/",
            f"/v1/boxes/{other}/proxy/{app.port}/",
            f"/v1/boxes/{foreign}/proxy/{app.port}/",
            f"/v1/boxes/absent/proxy/{app.port}/",
            "/v1/boxes",
            "/v1/images",
            "/v1/wrk/",
        ]
        for path in paths:
            await refused(web, path, cookie)
        for request in (
            ("DELETE", "/v1/boxes/web"),
            ("POST", "/v1/boxes/web/suspend"),
            ("POST", "/v1/exec/web"),
        ):
            response = await browser(web).request(*request, headers=shown(cookie))
            assert (response.status_code, response.json()) == (401, INVALID)
        assert second.visits == []
    assert len(app.visits) == 1


@pytest.mark.parametrize("path", ["/v1/mcp", "/v1/boxes/web/term"])
async def test_no_other_websocket_takes_the_cookie(
    web: Web, box: str, app: PortServer, path: str
) -> None:
    cookie = await visit(web, app.port)
    with pytest.raises(InvalidStatus) as failure:
        async with connect(f"ws://{web.address}{path}", additional_headers=shown(cookie)):
            pass
    assert failure.value.response.status_code == 401


async def test_a_revoked_key_takes_its_cookies_along(web: Web, box: str, app: PortServer) -> None:
    key = await web.new_key(name="short")
    cookie = await visit(web, app.port, key=key)
    await web.operations.keys.remove_key(ALICE, "short")
    await refused(web, f"/v1/boxes/web/proxy/{app.port}/", cookie)


async def test_a_revoked_key_ends_what_a_cookie_holds(web: Web, box: str) -> None:
    key = await web.new_key(name="short")
    pouring = False

    async def pour(visit: Visit) -> None:
        await visit.answer(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (9 if pouring else 1))
        await visit.answer(b"x")
        if pouring:
            await visit.reader.read()

    async with listening(pour) as app:
        cookie = await visit(web, app.port, key=key)
        pouring = True
        path = f"/v1/boxes/web/proxy/{app.port}/"
        async with browser(web).stream("GET", path, headers=shown(cookie)) as response:
            pieces = response.aiter_raw()
            assert await anext(pieces) == b"x"
            await web.operations.keys.remove_key(ALICE, "short")
            with pytest.raises(httpx.RemoteProtocolError):
                await anext(pieces)
        await until(lambda: app.open == 0)


async def test_a_cookie_ends_with_its_time(
    web: Web, box: str, app: PortServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preview_sessions, "SESSION_TIME", timedelta(0))
    cookie = await visit(web, app.port)
    await refused(web, f"/v1/boxes/web/proxy/{app.port}/", cookie)


async def test_a_cookie_does_not_outlive_its_box(web: Web, box: str, app: PortServer) -> None:
    cookie = await visit(web, app.port)
    await web.operations.boxes.remove(ALICE, "web")
    await refused(web, f"/v1/boxes/web/proxy/{app.port}/", cookie)
    again = (await web.operations.boxes.up(ALICE, "web")).id
    assert again != box
    for ref in ("web", box, again):
        await refused(web, f"/v1/boxes/{ref}/proxy/{app.port}/", cookie)
    assert len(app.visits) == 1


async def test_the_scope_of_a_key_is_in_its_cookie(web: Web, box: str, app: PortServer) -> None:
    inside = (await web.operations.boxes.up(ALICE, "ws1/web")).id
    key = await web.new_key(scope="ws1")
    cookie = await visit(web, app.port, key=key)
    for ref in ("web", inside):
        response = await browser(web).get(
            f"/v1/boxes/{ref}/proxy/{app.port}/?ws=ws2", headers=shown(cookie)
        )
        assert response.text == "ok"
    await refused(web, f"/v1/boxes/{box}/proxy/{app.port}/", cookie)


async def test_the_app_cannot_set_the_cookie(web: Web, box: str) -> None:
    answer = b"HTTP/1.1 200 OK\r\nSet-Cookie: svc_proxy=x\r\nSet-Cookie: a=1\r\n"
    async with listening(saying(answer + b"Content-Length: 0\r\n\r\n")) as app:
        response = await web.client().get(f"/v1/boxes/web/proxy/{app.port}/")
    assert response.headers.get_list("set-cookie") == ["a=1"]


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("POST", {}, 200),
        ("POST", {"origin": "http://ADDRESS"}, 200),
        ("POST", {"origin": "https://ADDRESS"}, 403),
        ("POST", {"origin": "http://evil.test"}, 403),
        ("POST", {"origin": "null"}, 403),
        ("POST", {"origin": "null", "sec-fetch-site": "same-origin"}, 200),
        ("POST", {"origin": "null", "sec-fetch-site": "cross-site"}, 403),
        ("QUERY", {"origin": "http://evil.test"}, 403),
        ("DELETE", {"origin": "http://evil.test"}, 403),
        ("GET", {"origin": "http://evil.test"}, 200),
        ("HEAD", {"origin": "http://evil.test"}, 200),
        ("OPTIONS", {"origin": "http://evil.test"}, 200),
    ],
)
async def test_other_sites_have_a_browser_change_nothing(
    web: Web, box: str, app: PortServer, method: str, headers: dict[str, str], status: int
) -> None:
    cookie = await visit(web, app.port)
    sent = {name: value.replace("ADDRESS", str(web.address)) for name, value in headers.items()}
    path = f"/v1/boxes/web/proxy/{app.port}/"
    response = await browser(web).request(method, path, headers=shown(cookie) | sent)
    assert response.status_code == status
    # With a key nobody needs to be asked: no browser adds that by itself.
    response = await web.client().request(method, path, headers=sent)
    assert response.status_code == 200


@pytest.mark.parametrize(("origin", "status"), [("http://ADDRESS", 502), ("http://evil.test", 403)])
async def test_other_sites_open_no_websocket(
    web: Web, box: str, app: PortServer, origin: str, status: int
) -> None:
    cookie = await visit(web, app.port)
    headers = shown(cookie) | {"origin": origin.replace("ADDRESS", str(web.address))}
    url = f"ws://{web.address}/v1/boxes/web/proxy/{app.port}/"
    app.handler = saying(b"no WebSocket\r\n\r\n")
    with pytest.raises(InvalidStatus) as failure:
        async with connect(url, additional_headers=headers):
            pass
    assert failure.value.response.status_code == status


async def test_many_keys_are_not_looked_up(web: Web, box: str, app: PortServer) -> None:
    query = "&".join(f"key=svc_{number:040x}" for number in range(9))
    response = await web.client().get(f"/v1/boxes/web/proxy/{app.port}/?{query}")
    assert response.status_code == 400
    many = "; ".join(f"svc_proxy={number:043x}" for number in range(500))
    response = await browser(web).get(f"/v1/boxes/web/proxy/{app.port}/", headers={"cookie": many})
    assert (response.status_code, response.json()) == (401, INVALID)


async def test_no_key_reaches_the_app(web: Web, box: str, app: PortServer) -> None:
    others = await web.new_key(BOB)
    page = f"http://{web.address}/v1/boxes/web/proxy/{app.port}/"
    reader, writer = await web.connect()
    lines = [
        f"POST /v1/boxes/web/proxy/{app.port}/?a=1&k%65y={web.key}&key={others}&key=app HTTP/1.1",
        "Host: api.test",
        f"Authorization: Bearer {web.key}",
        f"X-Api-Key: {others}",
        f"Referer: {page}?key={web.key}",
        f"Referer: {page}?b=2&key={others}",
        "Connection: close",
        "Content-Length: 0",
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    assert b" 200 OK" in await reader.read()
    writer.close()
    for key in (web.key, others):
        assert key.encode() not in app.last.head
    assert app.last.target == b"/?a=1&key=app"
    assert app.last.values(b"referer") == [page.encode(), page.encode() + b"?b=2"]


async def test_each_request_looks_everything_up_once(
    web: Web, box: str, app: PortServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session with its key and its box's owner, and the box that is meant: on every request, as
    any of them may have changed since the one before."""
    cookie = await visit(web, app.port)
    asked: list[str] = []
    for name in ("find_proxy_session", "find_boxes"):
        monkeypatch.setattr(web.store, name, partial(_counted, asked, getattr(web.store, name)))
    client = browser(web)
    for ref in ("web", box, "web"):
        url = f"/v1/boxes/{ref}/proxy/{app.port}/"
        assert (await client.get(url, headers=shown(cookie))).status_code == 200
        assert asked == ["find_proxy_session", "find_boxes"]
        asked.clear()


async def _counted(
    asked: list[str], ask: Callable[..., Awaitable[object]], *given: object
) -> object:
    asked.append(getattr(ask, "__name__", ""))
    return await ask(*given)
