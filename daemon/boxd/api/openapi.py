"""Protocol adapter only. The OpenAPI 3.1 document of the HTTP API, and the page made of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from boxd.api.described import boxes, streams
from boxd.api.described.parts import ERRORS, ref
from boxd.api.described.schemas import SCHEMAS
from boxd.api.described.streams import PROXY_METHODS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from boxd.api.described.parts import Json
    from boxd.api.routes import Route

PATH = "/v1/openapi.json"
ABOUT = (
    "Boxes on demand: isolated environments that are made at their first use, sleep when nobody"
    " uses them, and share a drive. Keys are minted over SSH alone: `ssh cli@HOST apikeys create"
    " laptop`. Every failure is a JSON object with one text, `error`."
)
FAMILIES = ("Boxes", "Commands", "Files", "Ports", "MCP", "Canvases", "Catalogs", "Service")
_SECURITY: Json = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer KEY`."},
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
    "queryKey": {
        "type": "apiKey",
        "in": "query",
        "name": "key",
        "description": "For browsers, which cannot set headers everywhere.",
    },
    "proxyCookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": "svc_proxy",
        "description": "Set by the first visit of a port with `key`, for this port of this box.",
    },
}
router = APIRouter()


def document(routes: Iterable[Route] | None = None) -> Json:
    """The document: of what `routes` serve, or of all that there is to be served."""
    paths = {**boxes.PATHS, **streams.PATHS}
    if routes is not None:
        served = operations_of(routes)
        paths = {
            path: {verb: one for verb, one in item.items() if (path, verb) in served}
            for path, item in paths.items()
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Box Service", "version": "v1", "description": ABOUT},
        "servers": [{"url": "/"}],
        "tags": [{"name": family} for family in FAMILIES],
        "paths": {path: item for path, item in sorted(paths.items()) if item},
        "components": {
            "schemas": SCHEMAS,
            "responses": {f"E{status}": _error(status) for status in ERRORS},
            "securitySchemes": _SECURITY,
        },
    }


def operations_of(routes: Iterable[Route]) -> set[tuple[str, str]]:
    """(path, method) of all that routes serve, as the document names them."""
    found = set()
    for route in routes:
        path = route.path.replace("...}", "}")
        methods = [method.lower() for method in route.methods]
        if not methods and route.http:
            methods = list(PROXY_METHODS)
        found |= {(path, method) for method in methods}
        if route.socket:
            found.add((path, "get"))
    return found


def _error(status: int) -> Json:
    headers: Json = {}
    if status == 401:
        headers = {"WWW-Authenticate": {"schema": {"type": "string", "const": "Bearer"}}}
    elif status == 405:
        headers = {"Allow": {"schema": {"type": "string"}}}
    made: Json = {
        "description": ERRORS[status],
        "content": {"application/json": {"schema": ref("Error")}},
    }
    return {**made, "headers": headers} if headers else made


def text(described: Json) -> str:
    """A document as it is served and printed."""
    return json.dumps(described, indent=1, ensure_ascii=False) + "\n"


@router.get(PATH)
async def openapi(request: Request) -> Response:
    """The document of what is served here."""
    return Response(request.app.state.openapi, media_type="application/json")
