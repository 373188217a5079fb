"""Protocol adapter only. The HTTP application: which path is served by what.

JSON routes are FastAPI's; exec and wrk stream both ways and are plain ASGI. `Api.routes` lists
them all, so that tests can enumerate every operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response

from boxd.api import boxes, catalogs, docs, health, openapi, surfaces, term, tls_ask
from boxd.api.errors import Refusal, answer_for, method_not_allowed
from boxd.api.exchange import exchange_of
from boxd.api.exec import ExecEndpoint
from boxd.api.guard import Guard
from boxd.api.headers import decode_path
from boxd.api.mcp import McpEndpoint
from boxd.api.origins import Origins
from boxd.api.page import Pages
from boxd.api.preview import PreviewHosts
from boxd.api.proxy import ProxyEndpoint
from boxd.api.routes import Route, StreamRoute
from boxd.api.sockets import socket_of
from boxd.api.wrk import WrkEndpoint
from boxd.config import Config
from boxd.errors import BoxdError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from boxd.api.mcp import Plane
    from boxd.operations import Operations

JSON_BODY_BYTES = 1024 * 1024
"""Largest body of a JSON route."""
PUBLIC = frozenset({"/healthz", tls_ask.PATH, openapi.PATH, docs.PATH})
"""Paths that need no key."""


class Api:
    """The application as an ASGI callable."""

    def __init__(
        self, operations: Operations, config: Config | None = None, plane: Plane | None = None
    ) -> None:
        """`config`: what the operator decided; None: what is shipped. `plane`: what serves MCP."""
        self._config = config or Config()
        self._json = _json_routes(operations, self._config)
        self._proxy = ProxyEndpoint(operations, partitioned=self._config.partitioned_cookies)
        self._previews = PreviewHosts(self._proxy, self._config.preview_domain)
        self._streams = [
            StreamRoute("/v1/exec/{spec...}", ExecEndpoint(operations), ("POST",)),
            StreamRoute(
                "/v1/wrk/{path...}", WrkEndpoint(operations), ("GET", "HEAD", "PUT", "DELETE")
            ),
            StreamRoute(term.TEMPLATE, term.TermEndpoint(operations), ("GET", "HEAD"), socket=True),
            StreamRoute("/v1/boxes/{box}/proxy/{port}/{path...}", self._proxy, socket=True),
        ]
        if plane is not None:
            origins = Origins(self._config.api_origins)
            mcp = McpEndpoint(operations, plane, origins)
            methods = ("GET", "POST", "DELETE")
            self._streams.append(StreamRoute("/v1/mcp", mcp, methods, socket=True, origins=origins))
        self._guarded = Guard(self._dispatch, operations.named)
        described = openapi.document(self.routes)
        self._json.state.openapi = openapi.text(described)
        self._json.state.docs = docs.page(described)

    @property
    def routes(self) -> list[Route]:
        """Every operation that is served."""
        found = [stream.route for stream in self._streams]
        for route in self._json.routes:
            if isinstance(route, APIRoute):
                methods = tuple(sorted(route.methods or ()))
                found.append(Route(route.path, methods, public=route.path in PUBLIC))
        return found

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request or one WebSocket."""
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
                if await route.origins.preflighted(scope, route.methods):
                    return
                if route.methods and scope["method"] not in route.methods:
                    raise method_not_allowed(", ".join(route.methods))
                await route.endpoint(scope, receive, send)
                return
        if scope["method"] == "HEAD":
            # The server sends no body for HEAD, so it may be answered like GET everywhere.
            scope["method"] = "GET"
        try:
            await self._json(scope, receive, send)
        finally:
            found = scope.get("route")
            exchange_of(scope).route = found.path if isinstance(found, APIRoute) else "-"

    async def _dispatch_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        for route in self._streams:
            if route.socket and route.matches(scope["path"]):
                socket_of(scope).route = route.template
                await route.endpoint(scope, receive, send)
                return
        raise Refusal(404, "no WebSocket here", [])


def _json_routes(operations: Operations, config: Config) -> FastAPI:
    app = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        max_body_size=JSON_BODY_BYTES,
    )
    app.state.operations = operations
    app.state.preview_domain = config.preview_domain
    app.state.pages = Pages()
    for error in (BoxdError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(error, _failure)
    for module in (health, boxes, catalogs, surfaces, tls_ask, openapi, docs):
        # As plain routes, not as an included router: so they can be enumerated.
        app.router.routes.extend(module.router.routes)
    return app


async def _failure(request: Request, error: Exception) -> Response:
    """Any failure of a JSON route as `{"error"}`."""
    exchange_of(request.scope).answered = error
    answer = answer_for(error, request.app.state.operations.named)
    response = Response(answer.body, answer.status)
    response.raw_headers = answer.lines()  # in the order in which all other refusals have them
    return response
