"""Protocol adapter only. `GET /v1/surfaces` and `GET /v1/surfaces/{canvas}`: canvases to view."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from boxd.http.description.operation import WS, Operation, answer, array, errors, path, query
from boxd.http.routes.json_route import JsonRequest, json_route
from boxd.http.routes.page import POLICY

_TEXTS = ("text/html", "text/markdown", "text/plain", "image/svg+xml")


@json_route(
    "GET",
    "/v1/surfaces",
    Operation(
        "listCanvases",
        "Canvases",
        "List canvases",
        "Returns the documents that programs rendered over MCP in the scope of the key.",
        {"200": answer("The canvases.", array("Canvas")), **errors(404)},
        (WS,),
    ),
)
async def list_canvases(request: JsonRequest) -> Response:
    """Return the canvases in the caller's scope; with `?ws=`, those of that workspace."""
    caller = await request.caller()
    canvases = await caller.operations.canvases.list_canvases(caller.principal, caller.ws)
    return JSONResponse([canvas.to_json() for canvas in canvases])


@json_route(
    "GET",
    "/v1/surfaces/{canvas}",
    Operation(
        "showCanvas",
        "Canvases",
        "Show a canvas",
        "Returns a page without scripts; with `raw`, the content as it was rendered. The browser"
        " shows both in a sandbox.",
        {
            "200": {
                "description": "The document.",
                "content": {kind: {"schema": {"type": "string"}} for kind in _TEXTS}
                | {"application/json": {"schema": {}}},
            },
            **errors(404),
        },
        (
            path("canvas", "The id of the canvas.", "report", pattern="^[a-z0-9-]{1,64}$"),
            query("raw", "Return the content unchanged.", type="string"),
            WS,
        ),
    ),
)
async def show_canvas(request: JsonRequest) -> Response:
    """Return a canvas as a page without scripts; with `?raw`, its content unchanged."""
    caller = await request.caller()
    canvas_id = request.parameter("canvas")
    canvas, content = await caller.operations.canvases.read_canvas(
        caller.principal, canvas_id, caller.ws
    )
    raw = request.query("raw")
    text = content if raw else await request.services.pages.page(canvas, content)
    return Response(
        text.encode(),
        media_type=canvas.mime if raw else "text/html",
        headers={"content-security-policy": POLICY},
    )


ROUTES = (list_canvases, show_canvas)
