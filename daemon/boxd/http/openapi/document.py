"""Protocol adapter only. The OpenAPI 3.1 document: collects the descriptions of all routes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from boxd.http.description.operation import ERRORS, ref
from boxd.http.description.schemas import SCHEMAS
from boxd.http.proxy import proxy
from boxd.http.routes.route import REST
from boxd.http.routes.table import JSON_ROUTES, STREAM_OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from boxd.http.description.operation import Json, Operation
    from boxd.http.routes.route import Route

ABOUT = (
    "Boxes on demand: isolated environments that are created on first use, are suspended while idle"
    " and share a drive. Keys are created only over SSH: `ssh cli@HOST apikeys create laptop`."
    " Every error is a JSON object with one string, `error`. A POST with a JSON body accepts"
    " `Idempotency-Key`: the same request with the same key is done once within 24 hours."
)
FAMILIES = (
    "Boxes",
    "Commands",
    "Files",
    "Ports",
    "MCP",
    "Canvases",
    "Account",
    "Catalogs",
    "Service",
)
_SECURITY: Json = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer KEY`."},
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
    "queryKey": {
        "type": "apiKey",
        "in": "query",
        "name": "key",
        "description": "For browsers, which cannot set headers on every request.",
    },
    "proxyCookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": "svc_proxy",
        "description": "Set by the first visit of a port with `key`, for this port of this box.",
    },
}


def document(routes: Iterable[Route] | None = None) -> Json:
    """Return the OpenAPI document of `routes`; None: of every route that a server can have."""
    served = None if routes is None else operations_of(routes)
    paths: dict[str, Json] = {}
    for path, method, operation in _described():
        if served is None or (path, method) in served:
            paths.setdefault(path, {})[method] = operation.to_json()
    return {
        "openapi": "3.1.0",
        "info": {"title": "Box Service", "version": "v1", "description": ABOUT},
        "servers": [{"url": "/"}],
        "tags": [{"name": family} for family in FAMILIES],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": SCHEMAS,
            "responses": {f"E{status}": _error(status) for status in ERRORS},
            "securitySchemes": _SECURITY,
        },
    }


def _described() -> Iterator[tuple[str, str, Operation]]:
    """Yield path, method in lower case, and description of every operation."""
    for route in JSON_ROUTES:
        yield route.path, route.method.lower(), route.operation
    for template, operations in STREAM_OPERATIONS.items():
        for method, operation in operations.items():
            yield _plain(template), method, operation


def _plain(template: str) -> str:
    """Return a template as OpenAPI writes it."""
    return template.replace(REST + "}", "}")


def operations_of(routes: Iterable[Route]) -> set[tuple[str, str]]:
    """Return (path, method) of every operation of `routes`, as the document writes them."""
    served = set()
    for route in routes:
        path = _plain(route.path)
        methods = [method.lower() for method in route.methods]
        if not methods and route.http:
            methods = list(proxy.METHODS)
        served |= {(path, method) for method in methods}
        if route.socket:
            served.add((path, "get"))
    return served


def _error(status: int) -> Json:
    headers: Json = {}
    if status == 401:
        headers = {"WWW-Authenticate": {"schema": {"type": "string", "const": "Bearer"}}}
    elif status == 405:
        headers = {"Allow": {"schema": {"type": "string"}}}
    response: Json = {
        "description": ERRORS[status],
        "content": {"application/json": {"schema": ref("Error")}},
    }
    return {**response, "headers": headers} if headers else response


def text(described: Json) -> str:
    """Return the document as JSON text."""
    return json.dumps(described, indent=1, ensure_ascii=False) + "\n"
