"""Protocol adapter only. `/v1/secrets`: variables of boxes. No route returns a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta
from starlette.responses import JSONResponse, Response

from boxd.errors import BadRequest
from boxd.http.description.bodies import body_of
from boxd.http.description.operation import (
    VARIABLE,
    WS,
    Json,
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
from boxd.secret import Secret

if TYPE_CHECKING:
    from boxd.model.secret import Tier

_NAME = path("name", "The name of the variable.", "API_TOKEN", pattern=VARIABLE)
_TIERS: dict[bytes, Tier] = {b"account": "account", b"workspace": "workspace"}
_TIER = query(
    "tier",
    "`account`: a secret of all workspaces; `workspace`: of one. Default: `workspace`.",
    type="string",
    enum=["account", "workspace"],
)
_SECRET: Json = {
    "name": "API_TOKEN",
    "tier": "workspace",
    "ws": "api",
    "updated": "2026-01-02T03:04:05+00:00",
}


class NewSecret(JsonForm, kw_only=True):
    """The body of `setSecret`."""

    value: Annotated[str, Meta(description="The value. No route returns it.")]
    tier: Annotated[
        Literal["account", "workspace"],
        Meta(description="The whole account, or one workspace, whose value takes precedence."),
    ] = "workspace"


@json_route(
    "GET",
    "/v1/secrets",
    Operation(
        "listSecrets",
        "Account",
        "List secrets",
        "Returns the names of the secrets; with `ws`, only those of that workspace.",
        {"200": answer("The secrets.", array("Secret"), [_SECRET]), **errors()},
        (WS,),
    ),
)
async def list_secrets(request: JsonRequest) -> Response:
    """Return the secrets that the caller can see, without their values."""
    caller = await request.caller()
    secrets = await caller.operations.secrets.list_secrets(caller.principal, caller.ws)
    return JSONResponse([secret.to_json() for secret in secrets])


@json_route(
    "PUT",
    "/v1/secrets/{name}",
    Operation(
        "setSecret",
        "Account",
        "Set a secret",
        "Sets a variable for processes that start in boxes from now on. Running processes keep the"
        " old value.",
        {
            "200": answer("The secret has a new value.", ref("Secret"), _SECRET),
            "201": answer("The secret is new.", ref("Secret"), _SECRET),
            **errors(404, 413, 415, 429),
        },
        (_NAME, WS),
        body_of(NewSecret, value="example", tier="account"),
    ),
)
async def set_secret(request: JsonRequest) -> Response:
    """Set a secret; 201 if it is new."""
    caller, form = await request.caller(), await request.form(NewSecret)
    secret, created = await caller.operations.secrets.set_secret(
        caller.principal,
        request.parameter("name"),
        Secret(form.value),
        tier=form.tier,
        ws=caller.ws,
    )
    return JSONResponse(secret.to_json(), 201 if created else 200)


@json_route(
    "DELETE",
    "/v1/secrets/{name}",
    Operation(
        "removeSecret",
        "Account",
        "Remove a secret",
        "Removes the secret. Running processes keep its value.",
        {"204": answer("The secret is removed."), **errors(404)},
        (_NAME, WS, _TIER),
    ),
)
async def remove_secret(request: JsonRequest) -> Response:
    """Remove a secret of a tier."""
    caller = await request.caller()
    values = set(request.query("tier")) or {b"workspace"}
    if len(values) > 1 or not values <= _TIERS.keys():
        raise BadRequest("?tier= must be account or workspace")
    await caller.operations.secrets.remove_secret(
        caller.principal, request.parameter("name"), tier=_TIERS[values.pop()], ws=caller.ws
    )
    return Response(status_code=204)


ROUTES = (list_secrets, set_secret, remove_secret)
