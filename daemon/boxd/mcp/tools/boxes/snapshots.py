"""`snapshot_*`: save the state of a box, and restore it."""

from __future__ import annotations

from typing import Any

from boxd.mcp.tools.boxes.boxes import REF, WS
from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import BOOLEAN, BOX, BOX_OPTIONAL, INTEGER, STRING, list_of
from boxd.mcp.tools.tool import Call, Tool

_NAME = Param("name", "string", "the name of the snapshot", required=True)
_SNAPSHOT = {
    "snapshot": STRING,
    "box": STRING,
    "workspace": STRING,
    "memory": BOOLEAN,
    "image": STRING,
    "flavor": STRING,
    "size_bytes": INTEGER,
    "created": STRING,
    "box_removed": BOOLEAN,
}


async def _list(call: Call) -> dict[str, Any]:
    views = await call.operations.snapshots.list_snapshots(
        call.principal, call.args["box"], call.args["ws"]
    )
    return {"snapshots": [view.to_json() for view in views]}


async def _create(call: Call) -> dict[str, Any]:
    view = await call.operations.snapshots.create_snapshot(
        call.principal, call.args["box"], call.args["name"]
    )
    return view.to_json()


async def _restore(call: Call) -> dict[str, Any]:
    view = await call.operations.snapshots.restore_snapshot(
        call.principal, call.args["box"], call.args["name"]
    )
    return view.to_json()


async def _remove(call: Call) -> dict[str, Any]:
    snapshot = await call.operations.snapshots.remove_snapshot(
        call.principal, call.args["box"], call.args["name"]
    )
    return {"removed": snapshot.name}


TOOLS = (
    Tool(
        "snapshot_list",
        "List snapshots",
        "List the snapshots of one box, of a workspace, or all of them.",
        _list,
        (Param("box", "string", "only the snapshots of this box"), WS),
        {"snapshots": list_of(_SNAPSHOT)},
        read_only=True,
    ),
    Tool(
        "snapshot_create",
        "Create a snapshot",
        "Save the disk of a box, and its memory if it has any. `box_fork` with BOX@SNAPSHOT "
        "creates a box from it.",
        _create,
        (REF, Param("name", "string", "the name (default: a generated name)")),
        _SNAPSHOT,
        frozenset({"workspace"}),
    ),
    Tool(
        "snapshot_restore",
        "Restore a snapshot",
        "Put a box back to one of its snapshots. Its current state is saved as pre-restore.",
        _restore,
        (REF, _NAME),
        BOX,
        BOX_OPTIONAL,
        destructive=True,
    ),
    Tool(
        "snapshot_rm",
        "Remove a snapshot",
        "Remove a snapshot of a box, even if the box is removed.",
        _remove,
        (REF, _NAME),
        {"removed": STRING},
        destructive=True,
    ),
)
