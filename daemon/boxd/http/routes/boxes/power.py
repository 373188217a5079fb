"""Protocol adapter only. `/v1/boxes/{ref}/...`: suspend, resume, keep and pin a box."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from msgspec import Meta
from starlette.responses import JSONResponse, Response

from boxd.boxes.lifecycle.pins import DEFAULT_PIN, LONGEST_PIN, MAX_WHY
from boxd.http.description.bodies import body_of
from boxd.http.description.boxes import BOX, REF
from boxd.http.description.operation import WS, Operation, answer, errors, ref, switch
from boxd.http.requests.json_body import JsonForm
from boxd.http.routes.json_route import JsonRequest, json_route

PIN_S = round(DEFAULT_PIN.total_seconds())
MAX_PIN_S = round(LONGEST_PIN.total_seconds())


@json_route(
    "POST",
    "/v1/boxes/{ref}/suspend",
    Operation(
        "suspendBox",
        "Boxes",
        "Suspend a box",
        "Saves the memory of the box to disk and stops its processes. Returns 400 if the host"
        " cannot suspend boxes.",
        {
            "200": answer("The state of the box.", ref("BoxState"), {"state": "suspended"}),
            **errors(404, 409, 413, 429, 507),
        },
        (REF, WS),
    ),
)
async def suspend(request: JsonRequest) -> Response:
    """Suspend a box and return its state; succeeds if the box is suspended already."""
    caller = await request.caller()
    ref = request.parameter("ref")
    view = await caller.operations.boxes.suspend(caller.principal, ref, caller.ws)
    return JSONResponse({"state": view.state})


@json_route(
    "POST",
    "/v1/boxes/{ref}/resume",
    Operation(
        "resumeBox",
        "Boxes",
        "Resume a box",
        "Restores the processes of the box from its saved memory. Returns 400 if the host cannot"
        " resume boxes.",
        {
            "200": answer("The state of the box.", ref("BoxState"), {"state": "running"}),
            **errors(404, 409, 413, 429, 507),
        },
        (REF, WS),
    ),
)
async def resume(request: JsonRequest) -> Response:
    """Resume a box from its saved memory and return its state; succeeds if it runs already."""
    caller = await request.caller()
    ref = request.parameter("ref")
    view = await caller.operations.boxes.resume(caller.principal, ref, caller.ws)
    return JSONResponse({"state": view.state})


@json_route(
    "POST",
    "/v1/boxes/{ref}/keep",
    Operation(
        "keepBox",
        "Boxes",
        "Keep a box",
        "Makes the box durable: the service removes it only at its deadline, not because it is"
        " unused. `off=true` undoes that; the box then counts as used now. Returns 400 if the box"
        " is removed when its last session ends.",
        {
            "200": answer("The box.", ref("Box"), {**BOX, "durable": True}),
            **errors(404, 409),
        },
        (
            REF,
            WS,
            switch("off", "`true` makes the box no longer durable."),
        ),
    ),
)
async def keep(request: JsonRequest) -> Response:
    """Make a box durable, or with `?off=true` no longer durable; return the box."""
    caller = await request.caller()
    ref, durable = request.parameter("ref"), not request.flag("off")
    view = await caller.operations.boxes.keep(caller.principal, ref, caller.ws, durable=durable)
    return JSONResponse(view.to_json())


class Pin(JsonForm, kw_only=True):
    """The body of `pinBox`."""

    for_s: Annotated[
        int, Meta(ge=1, le=MAX_PIN_S, description="Duration of the pin in seconds.")
    ] = PIN_S
    why: Annotated[
        str, Meta(max_length=MAX_WHY, description="The reason, in printable characters.")
    ] = ""


@json_route(
    "PUT",
    "/v1/boxes/{ref}/pin",
    Operation(
        "pinBox",
        "Boxes",
        "Keep a box awake",
        "Keeps the box awake for a time, at most until its deadline. The pin also protects the box"
        " from removal.",
        {"200": answer("The box.", ref("Box"), BOX), **errors(404, 409, 413, 415)},
        (REF, WS),
        body_of(Pin, for_s=28800, why="training"),
    ),
)
async def pin(request: JsonRequest) -> Response:
    """Pin a box, and return it."""
    caller, form = await request.caller(), await request.form(Pin)
    view = await caller.operations.boxes.pin(
        caller.principal,
        request.parameter("ref"),
        caller.ws,
        span=timedelta(seconds=form.for_s),
        why=form.why,
    )
    return JSONResponse(view.to_json())


@json_route(
    "DELETE",
    "/v1/boxes/{ref}/pin",
    Operation(
        "unpinBox",
        "Boxes",
        "Remove the pin of a box",
        "Removes the pin. No error if the box has none.",
        {"200": answer("The box.", ref("Box"), BOX), **errors(404, 409)},
        (REF, WS),
    ),
)
async def unpin(request: JsonRequest) -> Response:
    """Remove the pin of a box, and return the box."""
    caller = await request.caller()
    ref = request.parameter("ref")
    view = await caller.operations.boxes.unpin(caller.principal, ref, caller.ws)
    return JSONResponse(view.to_json())


ROUTES = (suspend, resume, keep, pin, unpin)
