"""Fixture `site`: the real HTTP API behind a real TLS proxy, with preview hosts."""

from __future__ import annotations

import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest_asyncio

from boxd.config import Address, Config
from tests.harness.http.caddy import API_HOST, serve_caddy
from tests.harness.http.web import ALICE, PREVIEW_DOMAIN, serve_web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.http.caddy import Caddy
    from tests.harness.http.web import Web


@dataclass
class Site:
    """The API and its proxy. URLs are those that users type."""

    web: Web
    caddy: Caddy
    clients: list[httpx.AsyncClient] = field(default_factory=list)

    @property
    def api(self) -> str:
        """Return the root URL of the API."""
        return f"https://{API_HOST}"

    async def box(self, name: str) -> str:
        """Create a running box of the first owner; return its id."""
        return (await self.web.operations.boxes.up(ALICE, name)).id

    def preview(self, box: str, port: int) -> str:
        """Return the preview URL of a port of a box."""
        return f"https://{box}-{port}.{PREVIEW_DOMAIN}"

    def path(self, box: str, port: int) -> str:
        """Return the URL of the same port below the API."""
        return f"{self.api}/v1/boxes/{box}/proxy/{port}"

    def client(self, **headers: str) -> httpx.AsyncClient:
        """Return a client that trusts only the proxy's authority and connects every host to it."""
        client = httpx.AsyncClient(
            transport=_ToTheProxy(verify=self.caddy.context),
            headers=headers,
            timeout=30,
        )
        self.clients.append(client)
        return client


class _ToTheProxy(httpx.AsyncHTTPTransport):
    """Connects to this machine for every host; certificates must match the host."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request."""
        host = request.url.host
        request.extensions["sni_hostname"] = host
        request.url = request.url.copy_with(host="127.0.0.1")
        return await super().handle_async_request(request)


@asynccontextmanager
async def serve_site(root: Path, config: Config | None = None) -> AsyncIterator[Site]:
    """Run the API and its proxy below `root`."""
    config = config or Config(api_addr=Address("127.0.0.1", 0), preview_domain=PREVIEW_DOMAIN)
    proxy = root / "proxy"
    proxy.mkdir()
    async with serve_web(root, config=config) as web, serve_caddy(proxy, web.address) as caddy:
        site = Site(web, caddy)
        try:
            yield site
        finally:
            for client in site.clients:
                await client.aclose()


@pytest_asyncio.fixture
async def site() -> AsyncIterator[Site]:
    """Yield a served site."""
    with tempfile.TemporaryDirectory(prefix="web-") as name:
        async with serve_site(Path(name)) as served:
            yield served
