"""Protocol adapter only. `/v1/workspaces`: list, create and remove workspaces."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta
from starlette.responses import JSONResponse, Response

from boxd.http.description.bodies import body_of
from boxd.http.description.operation import (
    NAME,
    Json,
    Operation,
    answer,
    array,
    errors,
    path,
    ref,
    switch,
)
from boxd.http.requests.json_body import JsonForm
from boxd.http.routes.json_route import JsonRequest, json_route

_NAME = path("name", "The name of the workspace.", "api", pattern=NAME)
_WORKSPACE: Json = {
    "name": "api",
    "default": False,
    "boxes": 1,
    "bytes": 4096,
    "files": 2,
    "profile": None,
    "created": "2026-01-02T03:04:05+00:00",
}


class NewWorkspace(JsonForm, kw_only=True):
    """The body of `createWorkspace`."""

    name: Annotated[str, Meta(description="The name of the workspace.")]


class DefaultProfile(JsonForm, kw_only=True):
    """The body of `setWorkspaceProfile`."""

    profile: Annotated[
        str | None, Meta(description="The profile of new boxes whose spec names no image.")
    ]


@json_route(
    "GET",
    "/v1/workspaces",
    Operation(
        "listWorkspaces",
        "Account",
        "List workspaces",
        "Returns the workspaces. The default workspace has no name.",
        {"200": answer("The workspaces.", array("Workspace"), [_WORKSPACE]), **errors()},
    ),
)
async def list_workspaces(request: JsonRequest) -> Response:
    """Return the workspaces that the caller can see."""
    caller = await request.caller()
    views = await caller.operations.workspaces.list_workspaces(caller.principal)
    return JSONResponse([view.to_json() for view in views])


@json_route(
    "POST",
    "/v1/workspaces",
    Operation(
        "createWorkspace",
        "Account",
        "Create a workspace",
        "Creates a workspace, with its own box names and its own drive.",
        {
            "201": answer("The workspace.", ref("Workspace"), _WORKSPACE),
            **errors(409, 413, 415, 429),
        },
        (),
        body_of(NewWorkspace, name="api"),
    ),
)
async def create_workspace(request: JsonRequest) -> Response:
    """Create a workspace, and return it."""
    caller, form = await request.caller(), await request.form(NewWorkspace)
    view = await caller.operations.workspaces.create_workspace(caller.principal, form.name)
    return JSONResponse(view.to_json(), 201)


@json_route(
    "DELETE",
    "/v1/workspaces/{name}",
    Operation(
        "removeWorkspace",
        "Account",
        "Remove a workspace",
        "Removes the workspace with its secrets, its canvases and the keys with its scope. Returns"
        " 409 while it has boxes, snapshots or files, unless `force=true`.",
        {"204": answer("The workspace is removed."), **errors(404, 409)},
        (_NAME, switch("force", "`true` also removes the boxes, the snapshots and the drive.")),
    ),
)
async def remove_workspace(request: JsonRequest) -> Response:
    """Remove a workspace; one that is in use only with `?force=true`."""
    caller = await request.caller()
    name, force = request.parameter("name"), request.flag("force")
    await caller.operations.workspaces.remove_workspace(caller.principal, name, force=force)
    return Response(status_code=204)


@json_route(
    "PUT",
    "/v1/workspaces/{name}/profile",
    Operation(
        "setWorkspaceProfile",
        "Account",
        "Set the default profile of a workspace",
        "Sets the profile of new boxes whose spec names no image. Existing boxes do not change.",
        {
            "200": answer("The workspace.", ref("Workspace"), {**_WORKSPACE, "profile": "py"}),
            **errors(404, 413, 415),
        },
        (_NAME,),
        body_of(DefaultProfile, profile="py"),
    ),
)
async def set_profile(request: JsonRequest) -> Response:
    """Set or remove the default profile of a workspace, and return the workspace."""
    caller, form = await request.caller(), await request.form(DefaultProfile)
    view = await caller.operations.workspaces.set_workspace_profile(
        caller.principal, request.parameter("name"), form.profile
    )
    return JSONResponse(view.to_json())


ROUTES = (list_workspaces, create_workspace, remove_workspace, set_profile)
