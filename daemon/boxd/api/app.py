"""Protocol adapter only. The HTTP application: which path is served by what.

JSON routes are FastAPI's; exec and wrk stream both ways and are plain ASGI. `Api.routes` lists
them all, so that tests can enumerate every operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response

from boxd.api import boxes, catalogs, health
from boxd.api.errors import answer_for, method_not_allowed
from boxd.api.exec import ExecEndpoint
from boxd.api.guard import Guard, exchange_of
from boxd.api.headers import decode_path
from boxd.api.wrk import WrkEndpoint
from boxd.errors import BoxdError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from boxd.operations import Operations

JSON_BODY_BYTES = 1024 * 1024
"""Largest body of a JSON route."""
PUBLIC = frozenset({"/healthz"})
"""Paths that need no key."""


@dataclass(frozen=True, slots=True)
class Route:
    """One path of the API. `public` ones need no key."""

    path: str
    methods: tuple[str, ...]
    public: bool


@dataclass(frozen=True, slots=True)
class StreamRoute:
    """A path prefix served by plain ASGI; the endpoint reads the rest from the raw path."""

    prefix: str
    methods: tuple[str, ...]
    parameter: str
    endpoint: ASGIApp

    @property
    def template(self) -> str:
        """The path with its parameter, as it is listed and logged."""
        return f"{self.prefix}{{{self.parameter}}}"

    def matches(self, path: str) -> bool:
        """Whether a decoded path belongs here."""
        return path.startswith(self.prefix) or path == self.prefix.rstrip("/")


class Api:
    """The application as an ASGI callable."""

    def __init__(self, operations: Operations) -> None:
        self._json = _json_routes(operations)
        self._streams = (
            StreamRoute("/v1/exec/", ("POST",), "spec", ExecEndpoint(operations)),
            StreamRoute(
                "/v1/wrk/", ("GET", "HEAD", "PUT", "DELETE"), "path", WrkEndpoint(operations)
            ),
        )
        self._guarded = Guard(self._dispatch)

    @property
    def routes(self) -> list[Route]:
        """Every operation that is served."""
        found = [Route(route.template, route.methods, public=False) for route in self._streams]
        for route in self._json.routes:
            if isinstance(route, APIRoute):
                methods = tuple(sorted(route.methods or ()))
                found.append(Route(route.path, methods, public=route.path in PUBLIC))
        return found

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request or refuses one WebSocket."""
        await self._guarded(scope, receive, send)

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["path"] = decode_path(scope["raw_path"])
        for route in self._streams:
            if route.matches(scope["path"]):
                exchange_of(scope).route = route.template
                if scope["method"] not in route.methods:
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


def _json_routes(operations: Operations) -> FastAPI:
    app = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        max_body_size=JSON_BODY_BYTES,
    )
    app.state.operations = operations
    for error in (BoxdError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(error, _failure)
    for router in (health.router, boxes.router, catalogs.router):
        # As plain routes, not as an included router: so they can be enumerated.
        app.router.routes.extend(router.routes)
    return app


async def _failure(request: Request, error: Exception) -> Response:
    """Any failure of a JSON route as `{"error"}`."""
    exchange_of(request.scope).answered = error
    answer = answer_for(error)
    headers = {name.decode(): value.decode() for name, value in answer.headers}
    return Response(answer.body, answer.status, headers, media_type="application/json")
