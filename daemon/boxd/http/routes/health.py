"""Protocol adapter only. `GET /healthz`, the only path of the API outside /v1."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from boxd.http.description.operation import NO_KEY, Operation, answer, errors, ref
from boxd.http.routes.json_route import JsonRequest, json_route


@json_route(
    "GET",
    "/healthz",
    Operation(
        "health",
        "Service",
        "Check whether the daemon answers",
        "The only path of the API outside /v1.",
        {"200": answer("The daemon answers.", ref("Ok"), {"ok": True}), **errors(key=False)},
        security=NO_KEY,
    ),
)
async def healthz(_: JsonRequest) -> Response:
    """Return `{"ok": true}`."""
    return JSONResponse({"ok": True})


ROUTES = (healthz,)
