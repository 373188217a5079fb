"""Protocol adapter only. `/v1/surfaces`: canvases."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from msgspec import Meta
from starlette.responses import JSONResponse, Response

from boxd.http.description.bodies import body_of
from boxd.http.description.operation import (
    WS,
    Operation,
    answer,
    array,
    errors,
    path,
    query,
    ref,
)
from boxd.http.requests.json_body import JsonForm
from boxd.http.routes.json_route import JsonRequest, json_route
from boxd.http.routes.page import POLICY
from boxd.operations.canvases import LONGEST_TTL

MAX_TTL_S = round(LONGEST_TTL.total_seconds())
_ID = path("canvas", "The id of the canvas.", "report", pattern="^[a-z0-9-]{1,64}$")
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
            _ID,
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
    page = content if raw else await request.services.pages.page(canvas, content)
    return Response(
        page.encode(),
        media_type=canvas.mime if raw else "text/html",
        headers={"content-security-policy": POLICY},
    )


class NewCanvas(JsonForm, kw_only=True):
    """The body of `renderCanvas`."""

    content: Annotated[str, Meta(description="The document.")]
    mime: Annotated[
        Literal["text/markdown", "text/plain", "text/html", "application/json", "image/svg+xml"],
        Meta(description="The type of the document."),
    ] = "text/markdown"
    title: Annotated[str, Meta(description="The title, in printable characters.")] = ""
    ttl_s: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_TTL_S)] | None,
        Meta(description="Seconds until the canvas expires; null: it does not."),
    ] = None


@json_route(
    "PUT",
    "/v1/surfaces/{canvas}",
    Operation(
        "renderCanvas",
        "Canvases",
        "Render a canvas",
        "Creates the canvas in the scope of the key, or replaces the canvas of this id.",
        {
            "200": answer("The canvas.", ref("Canvas")),
            **errors(413, 415, 429),
        },
        (_ID,),
        body_of(NewCanvas, content="# Report", title="Report"),
    ),
)
async def render_canvas(request: JsonRequest) -> Response:
    """Record a document, and return its canvas."""
    caller, form = await request.caller(), await request.form(NewCanvas)
    canvas = await caller.operations.canvases.render_canvas(
        caller.principal,
        request.parameter("canvas"),
        form.content,
        mime=form.mime,
        title=form.title,
        ttl=None if form.ttl_s is None else timedelta(seconds=form.ttl_s),
    )
    return JSONResponse(canvas.to_json())


@json_route(
    "DELETE",
    "/v1/surfaces/{canvas}",
    Operation(
        "removeCanvas",
        "Canvases",
        "Remove a canvas",
        "Removes the canvas.",
        {"204": answer("The canvas is removed."), **errors(404)},
        (_ID, WS),
    ),
)
async def remove_canvas(request: JsonRequest) -> Response:
    """Remove a canvas of the caller's scope."""
    caller = await request.caller()
    canvas_id = request.parameter("canvas")
    await caller.operations.canvases.remove_canvas(caller.principal, canvas_id, caller.ws)
    return Response(status_code=204)


ROUTES = (list_canvases, show_canvas, render_canvas, remove_canvas)
