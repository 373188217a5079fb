"""Protocol adapter only. Shares: tokens that open one box to people without its owner's key."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from msgspec import Meta
from starlette.responses import JSONResponse, Response

from boxd.http.description.bodies import body_of
from boxd.http.description.boxes import REF, SHARE
from boxd.http.description.operation import WS, Operation, answer, array, errors, path, ref
from boxd.http.requests.json_body import JsonForm
from boxd.http.routes.json_route import JsonRequest, json_route

MAX_TTL_S = 10 * 365 * 86_400
"""Longest life of a share, in seconds."""


class NewShare(JsonForm, kw_only=True):
    """The body of `createShare`."""

    ttl_s: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_TTL_S)] | None,
        Meta(description="Seconds until the share expires; null: until you revoke it."),
    ] = None


@json_route(
    "GET",
    "/v1/shares",
    Operation(
        "listShares",
        "Boxes",
        "List shares",
        "Returns the shares of all boxes, without their tokens.",
        {"200": answer("The shares.", array("Share"), [SHARE]), **errors()},
    ),
)
async def list_shares(request: JsonRequest) -> Response:
    """Return the shares of the caller."""
    caller = await request.caller()
    shares = await caller.operations.shares.list_shares(caller.principal)
    return JSONResponse([shared.to_json() for shared in shares])


@json_route(
    "GET",
    "/v1/boxes/{ref}/shares",
    Operation(
        "listBoxShares",
        "Boxes",
        "List the shares of a box",
        "Returns the shares of one box, without their tokens.",
        {"200": answer("The shares.", array("Share"), [SHARE]), **errors(404, 409)},
        (REF, WS),
    ),
)
async def list_box_shares(request: JsonRequest) -> Response:
    """Return the shares of one box."""
    caller = await request.caller()
    ref = request.parameter("ref")
    shares = await caller.operations.shares.list_shares(caller.principal, ref, caller.ws)
    return JSONResponse([shared.to_json() for shared in shares])


@json_route(
    "POST",
    "/v1/boxes/{ref}/shares",
    Operation(
        "createShare",
        "Boxes",
        "Share a box",
        "Creates a token that opens this box over SSH, including /wrk, to everyone who has it. The"
        " token is the SSH user name. Only this response shows it.",
        {
            "201": answer(
                "The share with its token.",
                ref("NewShare"),
                {**SHARE, "token": "svcs_0f3a41c2d5e6978811223344556677ff"},
            ),
            **errors(404, 409, 413, 415, 429),
        },
        (REF, WS),
        body_of(NewShare, ttl_s=86400),
    ),
)
async def create_share(request: JsonRequest) -> Response:
    """Create a share of a box, and return it with its token."""
    caller, form = await request.caller(), await request.form(NewShare)
    ttl = None if form.ttl_s is None else timedelta(seconds=form.ttl_s)
    shared, token = await caller.operations.shares.create_share(
        caller.principal, request.parameter("ref"), caller.ws, ttl=ttl
    )
    return JSONResponse(shared.to_json() | {"token": token.reveal()}, 201)


@json_route(
    "DELETE",
    "/v1/shares/{id}",
    Operation(
        "removeShare",
        "Boxes",
        "Revoke a share",
        "Revokes the share, and ends the connections of the people who use it.",
        {"204": answer("The share is revoked."), **errors(404, 409)},
        (path("id", "The id of the share, or the beginning of it.", SHARE["id"]),),
    ),
)
async def remove_share(request: JsonRequest) -> Response:
    """Revoke a share."""
    caller = await request.caller()
    await caller.operations.shares.remove_share(caller.principal, request.parameter("id"))
    return Response(status_code=204)


ROUTES = (list_shares, list_box_shares, create_share, remove_share)
