"""Hosts at which MCP answers: a page that rebinds its own name to this machine gets nothing."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from boxd.config import Address, Config
from tests.harness.http.mcp import INITIALIZE
from tests.harness.http.rawhttp import Request, ask
from tests.harness.http.web import serve_web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.http.rawhttp import Answer
    from tests.harness.http.web import Web

NAME = "api.example.com"
REFUSED = 421
OWN = ("127.0.0.1", "127.0.0.1:8080", "localhost:8080", "LOCALHOST", "localhost.", "[::1]:8080")
FOREIGN = (
    *("evil.example", "evil.example:8080", "localhost.evil.example", f"{NAME}.evil.example"),
    *("127.0.0.1.evil.example", "127.1", "", "localhost:x", "[::1", "a@localhost", "x" * 5000),
)
FORWARDED = "X-Forwarded-Host"


@pytest_asyncio.fixture
async def web() -> AsyncIterator[Web]:
    """Serves at one name beside its address."""
    config = Config(api_addr=Address("127.0.0.1", 0), api_hosts=(NAME,))
    with tempfile.TemporaryDirectory(prefix="web-") as name:
        async with serve_web(Path(name), config=config) as web:
            yield web


async def initialize(web: Web, host: str, *headers: tuple[str, str]) -> Answer:
    """The first request of a session, at a host."""
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
    lines = (
        ("Authorization", f"Bearer {web.key}"),
        ("Accept", "application/json, text/event-stream"),
        ("Content-Type", "application/json"),
    )
    body = json.dumps(message).encode()
    request = Request("POST", "/v1/mcp", (*lines, *headers), body, host=host)
    return await ask(web.address.host, web.address.port, request)


async def connect(web: Web, host: str) -> Answer:
    """The handshake of a WebSocket, at a host."""
    request = Request("WS", "/v1/mcp", (("Authorization", f"Bearer {web.key}"),), host=host)
    return await ask(web.address.host, web.address.port, request)


@pytest.mark.parametrize("host", [*OWN, NAME, f"{NAME.upper()}:443", "192.0.2.7", "x.localhost"])
async def test_addresses_localhost_and_listed_names_are_served(web: Web, host: str) -> None:
    assert (await initialize(web, host)).status == 200
    assert (await connect(web, host)).status == 101


@pytest.mark.parametrize("host", FOREIGN)
async def test_other_names_are_refused_by_both_doors(web: Web, host: str) -> None:
    for answer in (await initialize(web, host), await connect(web, host)):
        assert answer.status == REFUSED
        assert "--api-hosts" in answer.error
        assert len(answer.error) < 400


async def test_a_rebound_page_is_refused_although_its_origin_is_its_host(web: Web) -> None:
    page = ("Origin", "http://evil.example:8080")
    assert (await initialize(web, "evil.example:8080", page)).status == REFUSED
    # The page may add this line; it comes from this machine, as a trusted proxy does.
    assert (await initialize(web, "evil.example:8080", page, (FORWARDED, NAME))).status == REFUSED


async def test_the_host_before_a_proxy_counts(web: Web) -> None:
    assert (await initialize(web, "127.0.0.1:8080", (FORWARDED, NAME))).status == 200
    refused = await initialize(web, "127.0.0.1:8080", (FORWARDED, "other.example.com"))
    assert refused.status == REFUSED
    assert "'other.example.com'" in refused.error


async def test_the_rest_of_the_api_answers_at_any_name(web: Web) -> None:
    lines = (("Authorization", f"Bearer {web.key}"),)
    request = Request("GET", "/v1/boxes", lines, host="any.example")
    assert (await ask(web.address.host, web.address.port, request)).status == 200
