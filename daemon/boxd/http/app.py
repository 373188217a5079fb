"""Protocol adapter only. The HTTP application: it finds the route of each request.

`boxd.http.routes.table` lists the routes. `Api.routes` lists every operation, for tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.config import Config
from boxd.http.middleware.cors import Origins
from boxd.http.middleware.guard import Guard
from boxd.http.openapi import docs_page, document
from boxd.http.proxy import proxy
from boxd.http.proxy.preview import PreviewHosts
from boxd.http.proxy.proxy import ProxyEndpoint
from boxd.http.requests.errors import Refusal, method_not_allowed
from boxd.http.requests.exchange import exchange_of
from boxd.http.requests.headers import decode_path
from boxd.http.requests.websocket import socket_of
from boxd.http.routes.json_route import Services
from boxd.http.routes.page import Pages
from boxd.http.routes.table import JSON_ROUTES, stream_routes
from boxd.names.preview import preview_authority
from boxd.rendering import program

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from boxd.http.routes.mcp import McpService
    from boxd.http.routes.route import Route
    from boxd.operations import Operations
    from boxd.rendering.program import Run


class Api:
    """The HTTP API as an ASGI application."""

    def __init__(
        self,
        operations: Operations,
        config: Config | None = None,
        mcp_service: McpService | None = None,
        *,
        sanitise: Run = program.run,
    ) -> None:
        """`config` None: the default configuration. `mcp_service` None: MCP is not served.

        `sanitise` runs the program that sanitises documents; by default without a sandbox.
        """
        config = config or Config()
        self._proxy = ProxyEndpoint(operations, partitioned=config.partitioned_cookies)
        self._previews = PreviewHosts(self._proxy, config.preview_domain)
        self._origins = Origins(config.api_origins)
        self._streams = stream_routes(operations, config, self._proxy, mcp_service)
        self._guarded = Guard(self._dispatch, operations.texts.named, operations.observer)
        described = document.document(self.routes)
        self._services = Services(
            operations=operations,
            pages=Pages(sanitise),
            preview_domain=config.preview_domain,
            preview_authority=preview_authority(config.preview_domain, config.api_addr),
            document=document.text(described),
            docs=docs_page.page(described),
            docs_policy=docs_page.POLICY,
        )

    @property
    def routes(self) -> list[Route]:
        """Every route that this server has."""
        return [stream.route for stream in self._streams] + [route.route for route in JSON_ROUTES]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or one WebSocket."""
        await self._guarded(scope, receive, send)

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        if await self._previews.serve(scope, receive, send):
            return
        scope["path"] = decode_path(scope["raw_path"])
        if scope["type"] == "websocket":
            await self._dispatch_socket(scope, receive, send)
            return
        for route in self._streams:
            if route.http and route.matches(scope["path"]):
                exchange_of(scope).route = route.template
                # Ports belong to the programs in boxes, which answer for themselves.
                own = route.template != proxy.TEMPLATE
                if own and await self._origins.preflighted(scope, route.methods):
                    return
                if route.methods and scope["method"] not in route.methods:
                    raise method_not_allowed(", ".join(route.methods))
                await route.endpoint(scope, receive, send)
                return
        await self._dispatch_json(scope, receive, send)

    async def _dispatch_json(self, scope: Scope, receive: Receive, send: Send) -> None:
        routes = [route for route in JSON_ROUTES if route.matches(scope["path"])]
        if not routes:
            raise Refusal(404, "no such path; the API is below /v1", [])
        exchange_of(scope).route = routes[0].path
        methods = {route.method for route in routes}
        allowed = tuple(sorted({*methods, "HEAD"} if "GET" in methods else methods))
        if await self._origins.preflighted(scope, allowed):
            return
        # The server sends no body in answers to HEAD, so every GET route can answer HEAD as well.
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        for route in routes:
            if route.method == method:
                await route.serve(scope, receive, send, self._services)
                return
        raise method_not_allowed(", ".join(allowed))

    async def _dispatch_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        for route in self._streams:
            if route.socket and route.matches(scope["path"]):
                socket_of(scope).route = route.template
                await route.endpoint(scope, receive, send)
                return
        raise Refusal(404, "no WebSocket is served at this path", [])
