"""Protocol adapter only. `/v1/account`: name and SSH keys. Only SSH adds keys."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta
from starlette.responses import JSONResponse, Response

from boxd.http.description.bodies import body_of
from boxd.http.description.operation import (
    Json,
    Operation,
    answer,
    array,
    errors,
    path,
    ref,
)
from boxd.http.requests.json_body import JsonForm
from boxd.http.routes.json_route import JsonRequest, json_route

_FINGERPRINT = "SHA256:2cAPpBLz8EsmkGx3PDyFwzXKvZQTNQFvO2Im9mSUAhU"
_KEY: Json = {
    "name": "first",
    "fingerprint": _FINGERPRINT,
    "first": True,
    "public_key": None,
    "added": None,
    "last_used": "2026-01-02T03:05:00+00:00",
}


class AccountFacts(JsonForm, kw_only=True):
    """The body of `setAccount`."""

    name: Annotated[str | None, Meta(description="The display name; null removes it.")]


@json_route(
    "GET",
    "/v1/account/keys",
    Operation(
        "listAccountKeys",
        "Account",
        "List SSH keys",
        "Returns the SSH keys that open the account. Only SSH adds keys.",
        {"200": answer("The keys.", array("AccountKey"), [_KEY]), **errors()},
    ),
)
async def list_account_keys(request: JsonRequest) -> Response:
    """Return the SSH keys of the caller's account."""
    caller = await request.caller()
    keys = await caller.operations.ssh_keys.list_keys(caller.principal)
    return JSONResponse([key.to_json() for key in keys])


@json_route(
    "DELETE",
    "/v1/account/keys/{fingerprint}",
    Operation(
        "removeAccountKey",
        "Account",
        "Remove an SSH key",
        "Removes the key for ever, and ends its connections. The only key cannot be removed.",
        {"204": answer("The key is removed."), **errors(404, 409)},
        (
            path(
                "fingerprint",
                "The fingerprint of the key, with `/` as `%2F`, or its name.",
                _FINGERPRINT,
            ),
        ),
    ),
)
async def remove_account_key(request: JsonRequest) -> Response:
    """Remove an SSH key from the caller's account."""
    caller = await request.caller()
    await caller.operations.ssh_keys.remove_key(caller.principal, request.parameter("fingerprint"))
    return Response(status_code=204)


@json_route(
    "PUT",
    "/v1/account",
    Operation(
        "setAccount",
        "Account",
        "Name the account",
        "Sets the display name of the account, which `whoami` and the operator see.",
        {"200": answer("The name.", ref("AccountName"), {"name": "Alice"}), **errors(413, 415)},
        (),
        body_of(AccountFacts, name="Alice"),
    ),
)
async def set_account(request: JsonRequest) -> Response:
    """Set the display name of the caller's account."""
    caller, form = await request.caller(), await request.form(AccountFacts)
    name = await caller.operations.accounts.set_name(caller.principal, form.name)
    return JSONResponse({"name": name})


ROUTES = (set_account, list_account_keys, remove_account_key)
