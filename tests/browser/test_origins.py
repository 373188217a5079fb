"""Pages of other origins that use MCP with `fetch`: Chromium lets those that are listed, alone."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest_asyncio

from boxd.config import Address, Config
from tests.browser.chromium import open_chromium
from tests.harness.http.mcp import INITIALIZE, LEGACY
from tests.harness.http.portserver import listening, saying
from tests.harness.http.site import Site, serve_site
from tests.harness.http.web import PREVIEW_DOMAIN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import BrowserContext, Page

PAGE = b"<!doctype html><title>A page</title>"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n"
ANSWER = HEAD + b"Content-Length: %d\r\n\r\n" % len(PAGE) + PAGE
ASK = """async ([url, key, message, more]) => {
    const headers = {
        Authorization: "Bearer " + key, "Content-Type": "application/json",
        Accept: "application/json, text/event-stream", ...more,
    };
    const sent = {method: "POST", headers, body: JSON.stringify(message)};
    try {
        const answer = await fetch(url, sent);
        return {
            status: answer.status, session: answer.headers.get("Mcp-Session-Id"),
            asks: answer.headers.get("WWW-Authenticate"), body: await answer.text(),
        };
    } catch (error) {
        return {failed: error.name};
    }
}"""
END = """async ([url, key, session]) => {
    const headers = {Authorization: "Bearer " + key, "Mcp-Session-Id": session};
    return (await fetch(url, {method: "DELETE", headers})).status;
}"""
LISTEN = """async ([url, key, session, more]) => {
    const headers = {
        "X-Api-Key": key, Accept: "text/event-stream", "Mcp-Session-Id": session, ...more,
    };
    const answer = await fetch(url, {headers});
    const reader = answer.body.getReader();
    const first = new TextDecoder().decode((await reader.read()).value);
    await reader.cancel();
    return first;
}"""


class Visited:
    """A site, and pages of two other origins."""

    def __init__(self, site: Site, chromium: BrowserContext, listed: str, other: str) -> None:
        self.site = site
        self.url = f"{site.api}/v1/mcp"
        self.listed = listed
        self.other = other
        self._chromium = chromium

    async def page(self, origin: str) -> Page:
        """A page of an origin."""
        page = await self._chromium.new_page()
        await page.goto(origin)
        return page

    async def ask(
        self, page: Page, method: str, key: str | None = None, number: int = 1, **more: str
    ) -> dict[str, Any]:
        """What a page that calls a method of MCP gets to see."""
        params = INITIALIZE if method == "initialize" else {}
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        found: dict[str, Any] = await page.evaluate(
            ASK, [self.url, key or self.site.web.key, message, more]
        )
        return found


@pytest_asyncio.fixture
async def visited() -> AsyncIterator[Visited]:
    """See `Visited`."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(listening(saying(ANSWER))) for _ in range(2)]
        listed, other = (f"http://127.0.0.1:{server.port}" for server in servers)
        config = Config(
            api_addr=Address("127.0.0.1", 0), api_origins=(listed,), preview_domain=PREVIEW_DOMAIN
        )
        root = stack.enter_context(tempfile.TemporaryDirectory(prefix="web-"))
        site = await stack.enter_async_context(serve_site(Path(root), config))
        chromium = await stack.enter_async_context(open_chromium(site))
        yield Visited(site, chromium, listed, other)


async def test_a_page_of_a_listed_origin_has_a_session(visited: Visited) -> None:
    page = await visited.page(visited.listed)
    begun = await visited.ask(page, "initialize")
    assert begun["status"] == 200
    assert f'"protocolVersion":"{LEGACY}"' in begun["body"].replace(" ", "")
    session = begun["session"]
    named = {"Mcp-Session-Id": session, "Mcp-Protocol-Version": LEGACY}
    listed = await visited.ask(page, "tools/list", number=2, **named)
    assert listed["status"] == 200
    assert '"box_exec"' in listed["body"]
    here = [visited.url, visited.site.web.key, session]
    assert await page.evaluate(LISTEN, [*here, {}]) == ": keepalive\n\n"
    # The browser lets the header through; no event of this session has the id.
    refused = await page.evaluate(LISTEN, [*here, {"Last-Event-ID": "0"}])
    assert "Last-Event-ID is not the id of an event" in refused
    assert await page.evaluate(END, here) == 204


async def test_it_is_told_why_its_key_is_refused(visited: Visited) -> None:
    page = await visited.page(visited.listed)
    refused = await visited.ask(page, "initialize", key="svc_" + "0" * 40)
    assert (refused["status"], refused["asks"]) == (401, "Bearer")
    assert refused["body"] == '{"error": "invalid API key"}'


async def test_a_page_of_another_origin_learns_nothing(visited: Visited) -> None:
    page = await visited.page(visited.other)
    assert await visited.ask(page, "initialize") == {"failed": "TypeError"}
    assert await visited.ask(page, "initialize", key="svc_" + "0" * 40) == {"failed": "TypeError"}
    assert visited.site.web.mcp._http._sessions == {}
