"""Protocol adapter only. `GET /v1/surfaces` and `GET /v1/surfaces/{id}`: canvases, to look at."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from boxd.api.dependencies import Caller
from boxd.api.headers import path_text, query_values
from boxd.api.page import POLICY

router = APIRouter(prefix="/v1/surfaces")


@router.get("")
async def list_canvases(caller: Caller) -> list[dict[str, Any]]:
    """The canvases of the caller's scope; with `?ws=` those of that workspace."""
    found = await caller.operations.list_canvases(caller.principal, caller.ws)
    return [canvas.to_json() for canvas in found]


@router.get("/{canvas}")
async def show_canvas(caller: Caller, request: Request) -> Response:
    """A canvas as a page without scripts; with `?raw` its content as it is."""
    canvas_id = path_text(request.path_params["canvas"])
    canvas, content = await caller.operations.read_canvas(caller.principal, canvas_id, caller.ws)
    raw = query_values(request.scope["query_string"], b"raw")
    text = content if raw else await request.app.state.pages.page(canvas, content)
    return Response(
        text.encode(),
        media_type=canvas.mime if raw else "text/html",
        headers={"content-security-policy": POLICY},
    )
