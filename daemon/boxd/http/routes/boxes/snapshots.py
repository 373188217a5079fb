"""Protocol adapter only. Snapshots of boxes, and forks of boxes and snapshots."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta
from starlette.responses import JSONResponse, Response

from boxd.http.description.bodies import body_of
from boxd.http.description.boxes import MADE_BOX, REF, SNAPSHOT
from boxd.http.description.operation import (
    NAME,
    WS,
    Operation,
    answer,
    array,
    errors,
    path,
    ref,
)
from boxd.http.requests.json_body import JsonForm
from boxd.http.routes.json_route import JsonRequest, json_route
from boxd.model.progress import Progress
from boxd.operations.snapshots import AT

_NAME = path("name", "The name of the snapshot.", "before-upgrade", pattern=NAME)


class NewSnapshot(JsonForm, kw_only=True):
    """The body of `createSnapshot`."""

    name: Annotated[
        str | None, Meta(description="The name. Default: a name that the service generates.")
    ] = None


class NewFork(JsonForm, kw_only=True):
    """The body of `forkBox` and `forkSnapshot`."""

    name: Annotated[str, Meta(description="The new box: `[workspace/]name[^deadline][+lifetime]`.")]


@json_route(
    "GET",
    "/v1/snapshots",
    Operation(
        "listSnapshots",
        "Boxes",
        "List snapshots",
        "Returns the snapshots of all boxes, also of boxes that are removed; with `ws`, only those"
        " of that workspace.",
        {"200": answer("The snapshots.", array("Snapshot"), [SNAPSHOT]), **errors(404)},
        (WS,),
    ),
)
async def list_snapshots(request: JsonRequest) -> Response:
    """Return the snapshots that the caller can see."""
    caller = await request.caller()
    views = await caller.operations.snapshots.list_snapshots(caller.principal, ws=caller.ws)
    return JSONResponse([view.to_json() for view in views])


@json_route(
    "GET",
    "/v1/boxes/{ref}/snapshots",
    Operation(
        "listBoxSnapshots",
        "Boxes",
        "List the snapshots of a box",
        "Returns the snapshots of the boxes of this name, also of a box that is removed.",
        {"200": answer("The snapshots.", array("Snapshot"), [SNAPSHOT]), **errors(404, 409)},
        (REF, WS),
    ),
)
async def list_box_snapshots(request: JsonRequest) -> Response:
    """Return the snapshots of one box."""
    caller = await request.caller()
    ref = request.parameter("ref")
    views = await caller.operations.snapshots.list_snapshots(caller.principal, ref, caller.ws)
    return JSONResponse([view.to_json() for view in views])


@json_route(
    "POST",
    "/v1/boxes/{ref}/snapshots",
    Operation(
        "createSnapshot",
        "Boxes",
        "Create a snapshot",
        "Saves the disk of the box under a name, and its memory if it has any.",
        {
            "201": answer("The snapshot.", ref("Snapshot"), SNAPSHOT),
            **errors(404, 409, 413, 415, 429, 507),
        },
        (REF, WS),
        body_of(NewSnapshot, name="before-upgrade"),
    ),
)
async def create_snapshot(request: JsonRequest) -> Response:
    """Save the state of a box, and return the snapshot."""
    caller, form = await request.caller(), await request.form(NewSnapshot)
    view = await caller.operations.snapshots.create_snapshot(
        caller.principal, request.parameter("ref"), form.name, caller.ws
    )
    return JSONResponse(view.to_json(), 201)


@json_route(
    "DELETE",
    "/v1/boxes/{ref}/snapshots/{name}",
    Operation(
        "removeSnapshot",
        "Boxes",
        "Remove a snapshot",
        "Removes the snapshot. Returns 409 while a profile starts boxes from it.",
        {"204": answer("The snapshot is removed."), **errors(404, 409)},
        (REF, _NAME, WS),
    ),
)
async def remove_snapshot(request: JsonRequest) -> Response:
    """Remove one snapshot of a box."""
    caller = await request.caller()
    ref, name = request.parameter("ref"), request.parameter("name")
    await caller.operations.snapshots.remove_snapshot(caller.principal, ref, name, caller.ws)
    return Response(status_code=204)


@json_route(
    "POST",
    "/v1/boxes/{ref}/snapshots/{name}/restore",
    Operation(
        "restoreSnapshot",
        "Boxes",
        "Restore a snapshot",
        "Puts the box back to the snapshot. The service saves the current state as snapshot"
        " `pre-restore`.",
        {
            "200": answer("The box.", ref("Box")),
            **errors(404, 409, 413, 429, 507),
        },
        (REF, _NAME, WS),
    ),
)
async def restore_snapshot(request: JsonRequest) -> Response:
    """Restore a box from one of its snapshots, and return the box."""
    caller = await request.caller()
    ref, name = request.parameter("ref"), request.parameter("name")
    view = await caller.operations.snapshots.restore_snapshot(
        caller.principal, ref, name, caller.ws
    )
    return JSONResponse(view.to_json())


@json_route(
    "POST",
    "/v1/boxes/{ref}/fork",
    Operation(
        "forkBox",
        "Boxes",
        "Fork a box",
        "Creates a box with the disk and the running processes of this box, which does not change.",
        {
            "201": answer("The new box.", ref("MadeBox"), MADE_BOX),
            **errors(404, 409, 413, 415, 429, 504, 507),
        },
        (REF, WS),
        body_of(NewFork, name="web-2"),
    ),
)
async def fork_box(request: JsonRequest) -> Response:
    """Create a box from a box, and return the new one."""
    return await _fork(request, request.parameter("ref"))


@json_route(
    "POST",
    "/v1/boxes/{ref}/snapshots/{name}/fork",
    Operation(
        "forkSnapshot",
        "Boxes",
        "Create a box from a snapshot",
        "Creates a box with the disk of the snapshot, and with its processes if it has memory.",
        {
            "201": answer("The new box.", ref("MadeBox"), MADE_BOX),
            **errors(404, 409, 413, 415, 429, 504, 507),
        },
        (REF, _NAME, WS),
        body_of(NewFork, name="web-2"),
    ),
)
async def fork_snapshot(request: JsonRequest) -> Response:
    """Create a box from a snapshot, and return the new one."""
    return await _fork(request, request.parameter("ref") + AT + request.parameter("name"))


async def _fork(request: JsonRequest, base: str) -> Response:
    caller, form, notes = await request.caller(), await request.form(NewFork), list[str]()
    view = await caller.operations.snapshots.fork(
        caller.principal, base, form.name, caller.ws, progress=Progress(notes.append)
    )
    return JSONResponse(view.to_json() | {"notes": notes}, 201)


ROUTES = (
    list_snapshots,
    list_box_snapshots,
    create_snapshot,
    remove_snapshot,
    restore_snapshot,
    fork_box,
    fork_snapshot,
)
