"""Protocol adapter only. The routes of the OpenAPI document and of the page `/docs`.

`boxd.http.openapi` builds both when the daemon starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from boxd.http.description.operation import NO_KEY, Operation, answer, errors
from boxd.http.routes.json_route import json_route

if TYPE_CHECKING:
    from boxd.http.routes.json_route import JsonRequest


@json_route(
    "GET",
    "/v1/openapi.json",
    Operation(
        "openapi",
        "Service",
        "Get this document",
        "Returns the OpenAPI 3.1 document of this server.",
        {"200": answer("The document.", {"type": "object"}), **errors(key=False)},
        security=NO_KEY,
    ),
)
async def openapi(request: JsonRequest) -> Response:
    """Return the document of the routes that this server serves."""
    return Response(request.services.document, media_type="application/json")


@json_route(
    "GET",
    "/docs",
    Operation(
        "docs",
        "Service",
        "Read the documentation",
        "Returns this page.",
        {
            "200": {
                "description": "A page without scripts.",
                "content": {"text/html": {"schema": {"type": "string"}}},
            },
            **errors(key=False),
        },
        security=NO_KEY,
    ),
)
async def docs(request: JsonRequest) -> Response:
    """Return the guide and the reference as one page."""
    headers = {"content-security-policy": request.services.docs_policy}
    return Response(request.services.docs, media_type="text/html", headers=headers)


ROUTES = (openapi, docs)
