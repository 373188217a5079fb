"""Protocol adapter only. `/v1/keys`: list and revoke API keys. Only SSH creates them."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from boxd.http.description.operation import Json, Operation, answer, array, errors, path
from boxd.http.routes.json_route import JsonRequest, json_route

_KEY: Json = {
    "name": "laptop",
    "scope": None,
    "created": "2026-01-02T03:04:05+00:00",
    "expires": None,
    "last_used": "2026-01-02T03:05:00+00:00",
}


@json_route(
    "GET",
    "/v1/keys",
    Operation(
        "listKeys",
        "Account",
        "List API keys",
        "Returns the API keys of the account, without the keys themselves.",
        {"200": answer("The keys.", array("Key"), [_KEY]), **errors()},
    ),
)
async def list_keys(request: JsonRequest) -> Response:
    """Return the API keys of the caller's owner."""
    caller = await request.caller()
    keys = await caller.operations.keys.list_keys(caller.principal)
    return JSONResponse([key.to_json() for key in keys])


@json_route(
    "DELETE",
    "/v1/keys/{name}",
    Operation(
        "removeKey",
        "Account",
        "Revoke an API key",
        "Revokes the key, and ends its connections. A key can revoke itself.",
        {"204": answer("The key is revoked."), **errors(404)},
        (path("name", "The name of the key.", "laptop"),),
    ),
)
async def remove_key(request: JsonRequest) -> Response:
    """Revoke an API key."""
    caller = await request.caller()
    await caller.operations.keys.remove_key(caller.principal, request.parameter("name"))
    return Response(status_code=204)


ROUTES = (list_keys, remove_key)
