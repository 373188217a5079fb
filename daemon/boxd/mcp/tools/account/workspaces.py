"""`ws_*`: workspaces. Each workspace has its own box names and its own drive."""

from __future__ import annotations

from typing import Any

from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import BOOLEAN, INTEGER, NULLABLE_STRING, STRING, list_of
from boxd.mcp.tools.tool import Call, Tool

_WORKSPACE = {
    "name": NULLABLE_STRING,
    "default": BOOLEAN,
    "boxes": INTEGER,
    "bytes": INTEGER,
    "profile": NULLABLE_STRING,
}
NAME = Param("name", "string", "the name of the workspace", required=True)


async def _list(call: Call) -> dict[str, Any]:
    views = await call.operations.workspaces.list_workspaces(call.principal)
    return {"workspaces": [view.to_json() for view in views]}


async def _create(call: Call) -> dict[str, Any]:
    view = await call.operations.workspaces.create_workspace(call.principal, call.args["name"])
    return {"name": view.name}


async def _profile(call: Call) -> dict[str, Any]:
    view = await call.operations.workspaces.set_workspace_profile(
        call.principal, call.args["name"], call.args["profile"]
    )
    return view.to_json()


async def _rm(call: Call) -> dict[str, Any]:
    view = await call.operations.workspaces.remove_workspace(
        call.principal, call.args["name"], force=call.args["force"], progress=call.progress()
    )
    return {"name": view.name}


TOOLS = (
    Tool(
        "ws_list",
        "List workspaces",
        "List your workspaces. The default workspace has no name.",
        _list,
        result={
            "workspaces": list_of(_WORKSPACE),
        },
        read_only=True,
    ),
    Tool(
        "ws_create", "Create a workspace", "Create a workspace.", _create, (NAME,), {"name": STRING}
    ),
    Tool(
        "ws_profile",
        "Set the default profile of a workspace",
        "Set the profile of new boxes whose spec names no image. Existing boxes do not change.",
        _profile,
        (NAME, Param("profile", "string", "the profile (default: none)")),
        _WORKSPACE,
        destructive=True,
        idempotent=True,
    ),
    Tool(
        "ws_rm",
        "Remove a workspace",
        "Remove an empty workspace. With `force`, also remove its boxes, their snapshots and its "
        "drive.",
        _rm,
        (
            NAME,
            Param("force", "boolean", "also remove the contents of the workspace", default=False),
        ),
        {"name": STRING},
        destructive=True,
    ),
)
