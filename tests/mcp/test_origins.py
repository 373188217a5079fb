"""Pages of other origins at `/v1/mcp`: what a browser is told of those that are listed, and of no
other.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from boxd.config import Address, Config
from tests.harness.http.mcp import INITIALIZE, MODERN, envelope
from tests.harness.http.rawhttp import Request, ask
from tests.harness.http.web import serve_web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

    from tests.harness.http.rawhttp import Answer
    from tests.harness.http.web import Web

LISTED = "https://app.example.com"
OTHERS = ("https://evil.example", "http://app.example.com", f"{LISTED}.evil.example", "null")
KINDS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
METHODS = {"GET", "POST", "DELETE"}
ASKS = ("Access-Control-Request-Method", "POST")


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Web]:
    """As `web`, with pages of two origins."""
    origins = ("http://localhost:3000", LISTED)
    config = Config(api_addr=Address("127.0.0.1", 0), api_origins=origins)
    with tempfile.TemporaryDirectory(prefix="web-") as name:
        async with serve_web(Path(name), config=config) as web:
            yield web


async def by_hand(
    web: Web, method: str, *headers: tuple[str, str], path: str = "/v1/mcp"
) -> Answer:
    """A request without a key, and every line of its answer."""
    asked = Request(method, path, headers, host=str(web.address))
    return await ask(web.address.host, web.address.port, asked)


def told_to_browsers(answer: Answer | httpx.Response) -> dict[str, str]:
    """What only browsers read."""
    names = [name for name in answer.headers if name.startswith("access-control-")]
    return {name: answer.headers[name] for name in (*names, "vary") if name in answer.headers}


def words(text: str) -> set[str]:
    """Of a list in a header."""
    return {word.strip() for word in text.split(",")}


def message(method: str, **params: object) -> dict[str, object]:
    """A request of the protocol."""
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_a_preflight_of_a_listed_origin_needs_no_key(served: Web, method: str) -> None:
    asks = (ASKS[0], method), ("Access-Control-Request-Headers", "authorization,content-type")
    answer = await by_hand(served, "OPTIONS", ("Origin", LISTED), *asks)
    told = told_to_browsers(answer)
    assert (answer.status, answer.body) == (204, b"")
    assert words(told.pop("access-control-allow-methods")) == METHODS
    allowed = {word.lower() for word in words(told.pop("access-control-allow-headers"))}
    assert allowed >= {
        *("authorization", "x-api-key", "content-type", "accept", "last-event-id"),
        *("mcp-session-id", "mcp-protocol-version", "mcp-method", "mcp-name"),
    }
    assert 0 < int(told.pop("access-control-max-age")) <= 3600
    assert told == {"access-control-allow-origin": LISTED, "vary": "Origin"}


@pytest.mark.parametrize("origin", OTHERS)
async def test_other_origins_are_answered_as_ever(served: Web, web: Web, origin: str) -> None:
    """Byte for byte what is answered where no origin is listed."""
    asked = ("Origin", origin)
    for method, more in (("OPTIONS", (ASKS,)), ("OPTIONS", ()), ("POST", ()), ("PUT", ())):
        answer = await by_hand(served, method, asked, *more)
        assert answer == await by_hand(web, method, asked, *more)
        assert told_to_browsers(answer) == {}
    refused = await served.client(origin=origin).post("/v1/mcp", json={}, headers=KINDS)
    assert (refused.status_code, told_to_browsers(refused)) == (403, {})


async def test_without_an_origin_nothing_is_told(served: Web) -> None:
    for method in ("OPTIONS", "POST"):
        answer = await by_hand(served, method, ASKS)
        assert (answer.status, told_to_browsers(answer)) == (
            405 if method == "OPTIONS" else 401,
            {},
        )


async def test_every_answer_may_be_read_also_refusals(served: Web) -> None:
    client, stranger = served.client(origin=LISTED), served.client("svc_" + "0" * 40, origin=LISTED)
    begun = await client.post("/v1/mcp", json=message("initialize", **INITIALIZE), headers=KINDS)
    session = {"mcp-session-id": begun.headers["mcp-session-id"]}
    call = message("tools/call", name="fleet", arguments={}, _meta=envelope())
    modern = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "fleet"}
    answers = [
        (200, begun),
        (200, await client.post("/v1/mcp", json=call, headers=KINDS | modern)),
        (400, await client.post("/v1/mcp", json=[], headers=KINDS)),
        (401, await stranger.post("/v1/mcp", json=call, headers=KINDS)),
        (405, await client.put("/v1/mcp", json=call, headers=KINDS)),
        (405, await client.options("/v1/mcp")),
        (406, await client.get("/v1/mcp", headers={"accept": "text/html"})),
        (415, await client.post("/v1/mcp", content=b"{}", headers={"content-type": "text/plain"})),
        (204, await client.delete("/v1/mcp", headers=session)),
        (404, await client.delete("/v1/mcp", headers=session)),
    ]
    for status, answer in answers:
        told = told_to_browsers(answer)
        assert answer.status_code == status, answer.text
        assert words(told.pop("access-control-expose-headers")) >= {
            "Mcp-Session-Id",
            "WWW-Authenticate",
        }
        assert told == {"access-control-allow-origin": LISTED, "vary": "Origin"}


async def test_a_stream_of_events_may_be_read(served: Web) -> None:
    client = served.client(origin=LISTED)
    begun = await client.post("/v1/mcp", json=message("initialize", **INITIALIZE), headers=KINDS)
    named = {"mcp-session-id": begun.headers["mcp-session-id"], "accept": "text/event-stream"}
    async with client.stream("GET", "/v1/mcp", headers=named) as answer:
        assert told_to_browsers(answer)["access-control-allow-origin"] == LISTED


@pytest.mark.parametrize("path", ["/v1/mcp/x", "/nowhere", "/v1/boxes/x/proxy/80/"])
async def test_unknown_paths_and_ports_are_not_for_pages(served: Web, path: str) -> None:
    for method in ("OPTIONS", "GET"):
        answer = await by_hand(served, method, ("Origin", LISTED), ASKS, path=path)
        assert told_to_browsers(answer) == {}
        assert answer.status != 204
