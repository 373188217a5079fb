"""Protocol adapter only. `/v1/whoami` and `/v1/stat`: identity, usage and limits."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from boxd.http.description.boxes import REF
from boxd.http.description.operation import WS, Json, Operation, answer, array, errors, ref
from boxd.http.routes.json_route import JsonRequest, json_route

_STAT: Json = {"what": "boxes", "unit": "", "used": 2, "limit": 20}
_IDENTITY: Json = {
    "fingerprint": "SHA256:2cAPpBLz8EsmkGx3PDyFwzXKvZQTNQFvO2Im9mSUAhU",
    "key": None,
    "name": "Alice",
    "tier": "default",
    "boxes": 2,
    "workspaces": ["api"],
    "workspaces_with_boxes": [],
    "api_keys": 1,
    "scope": None,
}


@json_route(
    "GET",
    "/v1/whoami",
    Operation(
        "whoami",
        "Account",
        "Show your identity",
        "Returns the owner of the key, its tier, and the workspace that confines the key.",
        {"200": answer("The identity.", ref("Identity"), _IDENTITY), **errors()},
    ),
)
async def whoami(request: JsonRequest) -> Response:
    """Return the identity of the caller."""
    caller = await request.caller()
    identity = await caller.operations.stats.whoami(caller.principal)
    return JSONResponse(identity.to_json())


@json_route(
    "GET",
    "/v1/stat",
    Operation(
        "accountStats",
        "Account",
        "Show your usage and limits",
        "Returns the usage of the account as last measured, and its limits.",
        {"200": answer("The figures.", array("Stat"), [_STAT]), **errors()},
    ),
)
async def account_stats(request: JsonRequest) -> Response:
    """Return the figures of the caller's owner."""
    caller = await request.caller()
    stats = await caller.operations.stats.account_stats(caller.principal)
    return JSONResponse([stat.to_json() for stat in stats])


@json_route(
    "GET",
    "/v1/boxes/{ref}/stat",
    Operation(
        "boxStats",
        "Boxes",
        "Show the usage and limits of a box",
        "Returns the current usage of a box and its drive, with their limits.",
        {"200": answer("The figures.", array("Stat"), [_STAT]), **errors(404, 409)},
        (REF, WS),
    ),
)
async def box_stats(request: JsonRequest) -> Response:
    """Return the figures of one box."""
    caller = await request.caller()
    ref = request.parameter("ref")
    stats = await caller.operations.stats.box_stats(caller.principal, ref, caller.ws)
    return JSONResponse([stat.to_json() for stat in stats])


ROUTES = (whoami, account_stats, box_stats)
