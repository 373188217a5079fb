"""`ws_*`: workspaces, each with box names and a drive of its own."""

from __future__ import annotations

from typing import Any

from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import BOOLEAN, INTEGER, MAYBE, STRING, listed
from boxd.mcp.tools.tool import Call, Tool

NAME = Param("name", "string", "of the workspace", required=True)


async def _list(call: Call) -> dict[str, Any]:
    views = await call.operations.workspaces.list_workspaces(call.principal)
    return {"workspaces": [view.to_json() for view in views]}


async def _create(call: Call) -> dict[str, Any]:
    view = await call.operations.workspaces.create_workspace(call.principal, call.args["name"])
    return {"name": view.name}


async def _rm(call: Call) -> dict[str, Any]:
    gone = await call.operations.workspaces.remove_workspace(
        call.principal, call.args["name"], force=call.args["force"], progress=call.progress()
    )
    return {"name": gone.name}


TOOLS = (
    Tool(
        "ws_list",
        "List workspaces",
        "Lists your workspaces; the default one has no name.",
        _list,
        result={
            "workspaces": listed(
                {
                    "name": MAYBE,
                    "default": BOOLEAN,
                    "boxes": INTEGER,
                    "bytes": INTEGER,
                    "profile": MAYBE,
                }
            )
        },
        reads=True,
    ),
    Tool(
        "ws_create", "Create a workspace", "Makes a workspace.", _create, (NAME,), {"name": STRING}
    ),
    Tool(
        "ws_rm",
        "Remove a workspace",
        "Removes a workspace; with `force` also its boxes, their snapshots and its drive.",
        _rm,
        (NAME, Param("force", "boolean", "remove what is in it, too", default=False)),
        {"name": STRING},
        destroys=True,
    ),
)
