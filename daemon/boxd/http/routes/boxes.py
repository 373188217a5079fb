"""Protocol adapter only. `/v1/boxes`: list, remove, suspend, resume, keep."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from boxd.errors import Pinned
from boxd.http.description.operation import (
    REFERENCE,
    WS,
    Json,
    Operation,
    answer,
    array,
    errors,
    path,
    ref,
    switch,
)
from boxd.http.routes.json_route import JsonRequest, json_route

_REF = path(
    "ref",
    "A box by its name, by `workspace%2Fname`, by its id or by a prefix of its id.",
    "web",
    pattern=REFERENCE,
)
_EXAMPLE: Json = {
    "id": "0f3a41c2d5e6978811223344556677ff",
    "name": "web",
    "image": "debian",
    "state": "running",
    "age_s": 12.5,
    "cpus": 1.0,
    "mem_mb": 512,
    "ref": "web",
    "flavor": "small",
    "profile": None,
    "detail": "",
    "attached": 1,
    "why": {"shell": 1},
    "created": "2026-01-02T03:04:05+00:00",
    "deadline": None,
    "grace_s": None,
    "clamped": False,
    "next": None,
    "removal": None,
    "memory": False,
    "durable": False,
    "auto_suspend": True,
    "pinned_until": None,
    "pin_why": "",
    "egress": "all",
    "disk_mb": 32768,
    "pids": 512,
    "drive": True,
    "confidential": False,
    "runtime": "",
    "containers": False,
    "no_suspend": "",
    "usage": None,
}


@json_route(
    "GET",
    "/v1/boxes",
    Operation(
        "listBoxes",
        "Boxes",
        "List boxes",
        "Returns all boxes that the key can reach; with `ws`, only those of that workspace.",
        {"200": answer("The boxes.", array("Box"), [_EXAMPLE]), **errors(404)},
        (WS,),
    ),
)
async def list_boxes(request: JsonRequest) -> Response:
    """Return the caller's boxes; with `?ws=`, only those of that workspace."""
    caller = await request.caller()
    views = await caller.operations.boxes.list_boxes(
        caller.principal, caller.ws, everywhere=caller.ws is None
    )
    return JSONResponse([view.to_json() for view in views])


@json_route(
    "DELETE",
    "/v1/boxes/{ref}",
    Operation(
        "removeBox",
        "Boxes",
        "Remove a box",
        "Destroys the box with everything in it, even while it is in use. /wrk is not changed."
        " Returns 409 while the box is pinned, unless `force=true`.",
        {"204": answer("The box is removed."), **errors(404, 409)},
        (
            _REF,
            WS,
            switch("force", "`true` removes the box even while it is pinned."),
        ),
    ),
)
async def remove(request: JsonRequest) -> Response:
    """Destroy the box that the reference names; a pinned box only with `?force=true`."""
    caller = await request.caller()
    ref, force = request.parameter("ref"), request.flag("force")
    try:
        await caller.operations.boxes.remove(caller.principal, ref, caller.ws, force=force)
    except Pinned as error:
        remedy = "Add ?force=true to remove it, or unpin it first"
        raise Pinned(error.fact, remedy) from None
    return Response(status_code=204)


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
        (_REF, WS),
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
        (_REF, WS),
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
            "200": answer("The box.", ref("Box"), {**_EXAMPLE, "durable": True}),
            **errors(404, 409),
        },
        (
            _REF,
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


ROUTES = (list_boxes, remove, suspend, resume, keep)
