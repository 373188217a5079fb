"""Protocol adapter only. `/v1/drive/...`: clones and snapshots of a drive."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from boxd.errors import BadRequest
from boxd.http.description.operation import (
    WS,
    Json,
    Operation,
    answer,
    array,
    errors,
    path,
    query,
    ref,
    switch,
)
from boxd.http.routes.json_route import JsonRequest, json_route
from boxd.http.routes.wrk import FILE
from boxd.names import filenames
from boxd.workspaces.copies import NAME, RestoreOrder

_SNAPSHOT: Json = {
    "name": "2026-01-02T03-04-05Z",
    "path": "/project",
    "created": "2026-01-02T03:04:05+00:00",
    "inodes": 120,
    "bytes": 4096,
}
_PATH: Json = {"type": "string", "pattern": f"^/*$|{FILE}"}
_FILE: Json = {"type": "string", "pattern": FILE}
_NAME = path("name", "The name of the snapshot.", "2026-01-02T03-04-05Z", pattern=NAME)
_COPIED: Json = {"path": "/project"}


@json_route(
    "GET",
    "/v1/drive/snapshots",
    Operation(
        "listDriveSnapshots",
        "Files",
        "List snapshots of a drive",
        "Returns the snapshots, the oldest first. Their files are at `/v1/wrk/.snapshots/{name}/`.",
        {"200": answer("The snapshots.", array("DriveSnapshot"), [_SNAPSHOT]), **errors(404)},
        (WS,),
    ),
)
async def list_snapshots(request: JsonRequest) -> Response:
    """Return the snapshots of the workspace's drive."""
    caller = await request.caller()
    snapshots = await caller.operations.copies.list_snapshots(caller.principal, caller.ws)
    return JSONResponse([one.to_json() for one in snapshots])


@json_route(
    "POST",
    "/v1/drive/snapshots",
    Operation(
        "createDriveSnapshot",
        "Files",
        "Make a snapshot of a directory or file",
        "Keeps a read-only copy of everything at `path`. The copy shares the bytes of the files, so"
        " that it takes space only for what changes later. Changes of the drive wait while the copy"
        " is made.",
        {
            "201": answer("The new snapshot.", ref("DriveSnapshot"), _SNAPSHOT),
            **errors(404, 409, 413, 507),
        },
        (
            query("path", "The path on the drive; without it, the whole drive.", **_PATH),
            query("name", "The name; without it, the time.", type="string", pattern=NAME),
            WS,
        ),
    ),
)
async def create_snapshot(request: JsonRequest) -> Response:
    """Make a snapshot and return it."""
    caller = await request.caller()
    name = _value(request, "name")
    snapshot = await caller.operations.copies.create_snapshot(
        caller.principal,
        _value(request, "path") or b"",
        None if name is None else name.decode("utf-8", "replace"),
        caller.ws,
    )
    return JSONResponse(snapshot.to_json(), 201)


@json_route(
    "DELETE",
    "/v1/drive/snapshots/{name}",
    Operation(
        "removeDriveSnapshot",
        "Files",
        "Remove a snapshot of a drive",
        "Removes the snapshot for good; the trash does not keep it.",
        {"204": answer("The snapshot is removed."), **errors(404)},
        (_NAME, WS),
    ),
)
async def remove_snapshot(request: JsonRequest) -> Response:
    """Remove a snapshot."""
    caller = await request.caller()
    name = request.parameter("name")
    await caller.operations.copies.remove_snapshot(caller.principal, name, caller.ws)
    return Response(status_code=204)


@json_route(
    "POST",
    "/v1/drive/snapshots/{name}/restore",
    Operation(
        "restoreDriveSnapshot",
        "Files",
        "Copy a path of a snapshot back to the drive",
        "The copy shares the bytes of the snapshot. If something exists at its path, the response"
        " is 409; with `replace`, it moves to the trash in the same step.",
        {
            "200": answer("The path of the copy.", ref("Copied"), _COPIED),
            **errors(404, 409, 413, 507),
        },
        (
            _NAME,
            query(
                "path",
                "The path on the drive at the time of the snapshot; without it, all of it.",
                **_FILE,
            ),
            query("to", "The path of the copy; without it, the old path.", **_FILE),
            query("replace", "Replace what exists at that path.", type="boolean", default=False),
            WS,
        ),
    ),
)
async def restore_snapshot(request: JsonRequest) -> Response:
    """Copy a path of a snapshot back and return the path of the copy."""
    caller = await request.caller()
    order = RestoreOrder(
        request.parameter("name"),
        _value(request, "path"),
        _value(request, "to"),
        request.flag("replace"),
    )
    copy = await caller.operations.copies.restore_snapshot(caller.principal, order, caller.ws)
    return JSONResponse(filenames.members("path", copy))


@json_route(
    "POST",
    "/v1/drive/clone",
    Operation(
        "cloneFiles",
        "Files",
        "Copy a directory or file within a drive",
        "Copies everything at `from` to the free path `to` in one step. The copy shares the bytes"
        " of the files, so that it takes space only for what changes later.",
        {
            "201": answer("The path of the copy.", ref("Copied"), _COPIED),
            **errors(404, 409, 413, 507),
        },
        (
            {**query("from", "The path to copy.", **_PATH), "required": True},
            {**query("to", "The path of the copy.", **_FILE), "required": True},
            WS,
        ),
    ),
)
async def clone(request: JsonRequest) -> Response:
    """Copy a tree within the drive and return the path of the copy."""
    caller = await request.caller()
    source, target = _value(request, "from"), _value(request, "to")
    if source is None or target is None:
        raise BadRequest("?from= or ?to= is missing; give the path to copy and the new path")
    await caller.operations.copies.clone(caller.principal, source, target, caller.ws)
    return JSONResponse(filenames.members("path", b"/" + target.strip(b"/")), 201)


@json_route(
    "POST",
    "/v1/drive/move",
    Operation(
        "moveFiles",
        "Files",
        "Move a file or directory within a drive",
        "Moves `from` to the path `to` in one step. Open files of boxes stay open.",
        {
            "200": answer("The new path.", ref("Copied"), _COPIED),
            **errors(404, 409, 413, 507),
        },
        (
            {**query("from", "The path to move.", **_FILE), "required": True},
            {**query("to", "The new path.", **_FILE), "required": True},
            switch("replace", "`true` replaces a file or an empty directory at `to`."),
            WS,
        ),
    ),
)
async def move(request: JsonRequest) -> Response:
    """Move a path within the drive, and return the new path."""
    caller = await request.caller()
    source, target = _value(request, "from"), _value(request, "to")
    if source is None or target is None:
        raise BadRequest("?from= or ?to= is missing; give the path to move and the new path")
    await caller.operations.copies.move(
        caller.principal, source, target, caller.ws, replace=request.flag("replace")
    )
    return JSONResponse(filenames.members("path", b"/" + target.strip(b"/")))


def _value(request: JsonRequest, name: str) -> bytes | None:
    """Return the only value of a query parameter, or None. Raises BadRequest for two values."""
    values = request.query(name)
    if len(values) > 1:
        raise BadRequest(f"the request has more than one ?{name}=; give one")
    return values[0] if values else None


ROUTES = (list_snapshots, create_snapshot, remove_snapshot, restore_snapshot, clone, move)
