"""Hosts of ports of boxes on a real server: who is sent where, and what their cookie opens."""

from __future__ import annotations

import re
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from boxd.config import Address, Config
from tests.harness.http.errors import error_of
from tests.harness.http.ports import app, ask, echo
from tests.harness.http.portserver import listening
from tests.harness.http.web import ALICE, BOB, PREVIEW_DOMAIN, serve_web
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

    from tests.harness.http.portserver import PortServer
    from tests.harness.http.web import Web

COOKIE = re.compile(r"svc_proxy=([\w-]{43}); Path=/; HttpOnly; SameSite=Lax; Max-Age=3600")


def host(box: str, port: int) -> str:
    """Of a port of a box."""
    return f"{box}-{port}.{PREVIEW_DOMAIN}"


async def get(
    web: Web, name: str, path: str = "/", *, key: str | None = None, **headers: str
) -> httpx.Response:
    """The answer of a host to somebody with a key, or without one."""
    client = web.client()
    del client.headers["authorization"]
    shown = {"host": name} | ({"x-api-key": key} if key else {})
    lines = {name.replace("_", "-"): text for name, text in headers.items()}
    return await client.get(path, headers=shown | lines)


@asynccontextmanager
async def served(web: Web, spec: str = "web") -> AsyncIterator[tuple[str, PortServer]]:
    """A box with a server; its id, and the server."""
    box = (await web.operations.boxes.up(ALICE, spec)).id
    async with listening() as server:
        yield box, server


@pytest.mark.parametrize(
    "path", ["/", "/v1/boxes", "/v1/boxes/web/proxy/1/", "/healthz", "/v1/tls-ask", "/v1/wrk/%ff"]
)
async def test_every_path_is_the_apps(previews: Web, path: str) -> None:
    async with served(previews) as (_, server):
        answer = await get(previews, host("web", server.port), path, key=previews.key)
        assert (answer.status_code, answer.text) == (200, "ok")
        assert server.last.target == path.encode()
        assert server.last.values(b"x-forwarded-prefix") == []
        assert server.last.values(b"host") == [host("web", server.port).encode()]


async def test_a_box_has_hosts_by_name_and_by_id(previews: Web) -> None:
    async with served(previews, "my-app") as (box, server):
        for name in ("my-app", "MY-App", box, box[:12], box[:6].upper()):
            for end in ("", ":8443", ".", ".:80"):
                shown = host(name, server.port) + end
                assert (await get(previews, shown, key=previews.key)).text == "ok", shown


@pytest.mark.parametrize(
    "label", ["web", "web-0", "web-080", "web-70000", "a.web-80", "-80", "web-"]
)
async def test_a_label_that_names_no_port(previews: Web, label: str) -> None:
    answer = await get(previews, f"{label}.{PREVIEW_DOMAIN}", "/v1/boxes", key=previews.key)
    assert answer.status_code == 404
    assert f"BOX-PORT.{PREVIEW_DOMAIN}" in error_of(answer)


@pytest.mark.parametrize("name", [PREVIEW_DOMAIN, "web-80.test", f"web-80.{PREVIEW_DOMAIN}.test"])
async def test_other_hosts_are_the_apis(previews: Web, name: str) -> None:
    assert (await get(previews, name, "/healthz")).json() == {"ok": True}


async def test_without_a_preview_domain_all_hosts_are_the_apis(web: Web) -> None:
    assert (await get(web, host("web", 80), "/healthz")).json() == {"ok": True}


async def test_strangers_learn_nothing(previews: Web) -> None:
    async with served(previews) as (_, server):
        there = await get(previews, host("web", server.port))
        absent = await get(previews, host("absent", 1))
        assert there.status_code == absent.status_code == 401
        assert there.content == absent.content
        for shown in (there, absent):
            del shown.headers["date"], shown.headers["x-request-id"]
        assert there.headers == absent.headers
        assert server.visits == []


async def test_the_key_says_whose_box_is_meant(previews: Web) -> None:
    theirs = await previews.new_key(BOB)
    async with served(previews) as (box, server), listening() as other:
        assert (await get(previews, host("web", server.port), key=theirs)).status_code == 404
        assert (await get(previews, host(box, server.port), key=theirs)).status_code == 404
        await previews.operations.boxes.up(BOB, "web")
        assert (await get(previews, host("web", other.port), key=theirs)).text == "ok"
        assert (await get(previews, host(box, server.port), key=theirs)).status_code == 404


async def test_a_box_in_a_workspace_is_meant_by_its_id(previews: Web) -> None:
    async with served(previews, "ws1/web") as (box, server):
        assert (await get(previews, host("web", server.port), key=previews.key)).status_code == 404
        assert (await get(previews, host(box, server.port), key=previews.key)).text == "ok"
        inside = await previews.new_key(scope="ws1")
        assert (await get(previews, host("web", server.port), key=inside)).text == "ok"
        await previews.operations.boxes.up(ALICE, "ws2/other")
        outside = await previews.new_key(scope="ws2")
        assert (await get(previews, host(box, server.port), key=outside)).status_code == 404


async def test_a_name_that_begins_an_id_is_ambiguous(previews: Web) -> None:
    async with served(previews) as (box, server):
        other = (await previews.operations.boxes.up(ALICE, box[:3])).id
        answer = await get(previews, host(box[:3], server.port), key=previews.key)
        assert answer.status_code == 409
        assert {box, other} <= set(re.findall("[0-9a-f]{32}", error_of(answer)))
        assert server.visits == []


async def test_the_cookie_opens_its_host_alone(previews: Web) -> None:
    async with served(previews) as (box, server), listening() as second:
        name = host("web", server.port)
        first = await get(previews, name, f"/?key={previews.key}&mine=1")
        assert server.last.target == b"/?mine=1"
        (line,) = first.headers.get_list("set-cookie")
        match = COOKIE.fullmatch(line)
        assert match is not None
        cookie = f"a=1; svc_proxy={match[1]}"
        assert (await get(previews, name, "/x", cookie=cookie)).text == "ok"
        assert server.last.values(b"cookie") == [b"a=1"]
        assert (await get(previews, f"{name}:8443".upper(), cookie=cookie)).text == "ok"
        asked = len(server.visits)
        for elsewhere in (host(box, server.port), host("web", second.port)):
            assert (await get(previews, elsewhere, cookie=cookie)).status_code == 401, elsewhere
        path = f"/v1/boxes/web/proxy/{server.port}/"
        assert (await get(previews, "api.test", path, cookie=cookie)).status_code == 401
        assert (await get(previews, "api.test", "/v1/boxes", cookie=cookie)).status_code == 401
        assert (len(server.visits), second.visits) == (asked, [])


async def test_a_cookie_of_the_path_opens_no_host(previews: Web) -> None:
    async with served(previews) as (_, server):
        path = f"/v1/boxes/web/proxy/{server.port}/"
        first = await get(previews, "api.test", f"{path}?key={previews.key}")
        cookie = first.headers.get_list("set-cookie")[0].split(";")[0]
        assert (await get(previews, "api.test", path, cookie=cookie)).text == "ok"
        assert (await get(previews, host("web", server.port), cookie=cookie)).status_code == 401


async def test_the_cookie_goes_with_its_key_and_its_box(previews: Web) -> None:
    async with served(previews) as (_, server):
        name = host("web", server.port)
        key = await previews.new_key(name="gone")
        first = await get(previews, name, f"/?key={key}")
        again = await get(previews, name, f"/?key={previews.key}")
        cookies = [one.headers["set-cookie"].split(";")[0] for one in (first, again)]
        await previews.operations.keys.remove_key(ALICE, "gone")
        statuses = [(await get(previews, name, cookie=one)).status_code for one in cookies]
        assert statuses == [401, 200]
        await previews.operations.boxes.remove(ALICE, "web")
        await previews.operations.boxes.up(ALICE, "web")
        assert (await get(previews, name, cookie=cookies[1])).status_code == 401


async def test_a_trusted_proxy_may_tell_the_host(previews: Web) -> None:
    async with served(previews) as (_, server):
        name = host("web", server.port)
        told = {"x_forwarded_host": name, "x_forwarded_proto": "https"}
        answer = await get(previews, "127.0.0.1:8080", f"/?key={previews.key}", **told)
        assert answer.text == "ok"
        assert server.last.values(b"x-forwarded-proto") == [b"https"]
        line = answer.headers["set-cookie"]
        assert line.endswith("; Path=/; HttpOnly; Secure; SameSite=None; Max-Age=3600")
        assert "Domain" not in line


async def test_nobody_else_may() -> None:
    config = Config(
        api_addr=Address("127.0.0.1", 0),
        preview_domain=PREVIEW_DOMAIN,
        trusted_proxy="127.0.0.9",
    )
    with tempfile.TemporaryDirectory(prefix="web-") as name:
        async with serve_web(Path(name), config=config) as web:
            answer = await get(web, "api.test", "/healthz", x_forwarded_host=host("web", 80))
            assert answer.json() == {"ok": True}
            answer = await get(web, host("web", 80), "/healthz", x_forwarded_host="api.test")
            assert answer.status_code == 401


async def test_websockets(previews: Web) -> None:
    await previews.operations.boxes.up(ALICE, "web")
    async with app(echo) as port:
        settings: dict[str, Any] = {"proxy": None, "host": previews.address.host}
        settings["port"] = previews.address.port
        url = f"ws://{host('web', port)}/v1/mcp"
        async with connect(f"{url}?key={previews.key}", **settings) as socket:
            await socket.send("hello")
            assert await socket.recv() == "hello"
        with pytest.raises(InvalidStatus) as refused:
            await connect(url, **settings)
        assert refused.value.response.status_code == 401
        wrong = f"ws://web.{PREVIEW_DOMAIN}/v1/mcp?key={previews.key}"
        with pytest.raises(InvalidStatus) as refused:
            await connect(wrong, **settings)
        assert refused.value.response.status_code == 404


async def test_requests_without_a_host_are_the_apis(previews: Web) -> None:
    answer = await ask(previews, b"GET /healthz HTTP/1.0\r\n\r\n")
    assert answer.endswith(b'{"ok":true}')


async def test_what_the_log_says(previews: Web, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "boxd.http.access")
    async with served(previews) as (_, server):
        await get(previews, host("web", server.port), f"/secret?key={previews.key}")

    def said() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.name == "boxd.http.access"]

    await until(said)
    (line,) = said()
    assert line.startswith("GET {box}-{port}.* 200 ")
    assert previews.key not in line
    assert "secret" not in line
