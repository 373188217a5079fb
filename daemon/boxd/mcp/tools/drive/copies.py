"""`wrk_clone` and `wrk_snapshot...`: copies of trees on the drive of a workspace."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote_to_bytes

from boxd.mcp.tools.boxes.boxes import WS
from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import INTEGER, STRING, list_of
from boxd.mcp.tools.tool import Call, Tool
from boxd.names import filenames
from boxd.workspaces.copies import RestoreOrder

_SNAPSHOT = {
    "name": STRING,
    "path": STRING,
    "encoded_path": STRING,
    "created": STRING,
    "inodes": INTEGER,
    "bytes": INTEGER,
}
_ENTRY_BYTES = 300
"""Estimate of the size of a snapshot in a result, without its path."""
_ENCODED = Param(
    "encoded",
    "boolean",
    "paths are percent-encoded, as in encoded_path; for names that are not UTF-8",
    default=False,
)
_NAME = Param("name", "string", "the name of the snapshot", required=True, maximum=100)


async def _create(call: Call) -> dict[str, Any]:
    snapshot = await call.operations.copies.create_snapshot(
        call.principal, _path(call, "path") or b"", call.args["name"], call.args["ws"]
    )
    return snapshot.to_json()


async def _list(call: Call) -> dict[str, Any]:
    snapshots = await call.operations.copies.list_snapshots(call.principal, call.args["ws"])
    await call.reserve(sum(_ENTRY_BYTES + 4 * len(one.path) for one in snapshots))
    return {"snapshots": [one.to_json() for one in snapshots]}


async def _remove(call: Call) -> dict[str, Any]:
    name = call.args["name"]
    await call.operations.copies.remove_snapshot(call.principal, name, call.args["ws"])
    return {"name": name}


async def _restore(call: Call) -> dict[str, Any]:
    order = RestoreOrder(
        call.args["name"], _path(call, "path"), _path(call, "to"), call.args["replace"]
    )
    copy = await call.operations.copies.restore_snapshot(call.principal, order, call.args["ws"])
    return filenames.members("path", copy)


async def _clone(call: Call) -> dict[str, Any]:
    source, target = _path(call, "path") or b"", _path(call, "to") or b""
    await call.operations.copies.clone(call.principal, source, target, call.args["ws"])
    return filenames.members("path", b"/" + target.strip(b"/"))


async def _move(call: Call) -> dict[str, Any]:
    source, target = _path(call, "path") or b"", _path(call, "to") or b""
    await call.operations.copies.move(
        call.principal, source, target, call.args["ws"], replace=call.args["replace"]
    )
    return filenames.members("path", b"/" + target.strip(b"/"))


def _path(call: Call, name: str) -> bytes | None:
    """Return a path argument as bytes, or None."""
    path: str | None = call.args[name]
    if path is None:
        return None
    return unquote_to_bytes(path) if call.args["encoded"] else path.encode("utf-8")


TOOLS = (
    Tool(
        "wrk_snapshot",
        "Make a snapshot on the drive",
        "Keep a read-only copy of a file or directory of the drive. Its files are at "
        "/.snapshots/NAME on the drive. It takes space only for what changes later.",
        _create,
        (
            Param("path", "string", "the file or directory", default="/"),
            Param("name", "string", "the name of the snapshot (default: the time)", maximum=100),
            WS,
            _ENCODED,
        ),
        _SNAPSHOT,
        frozenset({"encoded_path"}),
    ),
    Tool(
        "wrk_snapshots",
        "List snapshots of the drive",
        "List the snapshots of the drive, the oldest first.",
        _list,
        (WS,),
        {"snapshots": list_of(_SNAPSHOT)},
        read_only=True,
    ),
    Tool(
        "wrk_snapshot_restore",
        "Restore from a snapshot of the drive",
        "Copy a file or directory of a snapshot back to the drive. An existing path is replaced "
        "only with `replace`; it then moves to the trash.",
        _restore,
        (
            _NAME,
            Param(
                "path",
                "string",
                "the path on the drive at the time of the snapshot (default: all of it)",
            ),
            Param("to", "string", "the path of the copy (default: the old path)"),
            Param("replace", "boolean", "replace what exists at that path", default=False),
            WS,
            _ENCODED,
        ),
        {"path": STRING, "encoded_path": STRING},
        frozenset({"encoded_path"}),
        destructive=True,
    ),
    Tool(
        "wrk_snapshot_remove",
        "Remove a snapshot of the drive",
        "Remove a snapshot for good; the trash does not keep it.",
        _remove,
        (_NAME, WS),
        {"name": STRING},
        destructive=True,
    ),
    Tool(
        "wrk_clone",
        "Copy a file or directory of the drive",
        "Copy a file or directory of the drive to a free path in one step. The copy takes space "
        "only for what changes later.",
        _clone,
        (
            Param("path", "string", "the file or directory to copy", required=True),
            Param("to", "string", "the path of the copy", required=True),
            WS,
            _ENCODED,
        ),
        {"path": STRING, "encoded_path": STRING},
        frozenset({"encoded_path"}),
    ),
    Tool(
        "wrk_move",
        "Move a file or directory of the drive",
        "Move a file or directory of the drive to another path in one step.",
        _move,
        (
            Param("path", "string", "the file or directory to move", required=True),
            Param("to", "string", "the new path", required=True),
            Param("replace", "boolean", "replace a file at the new path", default=False),
            WS,
            _ENCODED,
        ),
        {"path": STRING, "encoded_path": STRING},
        frozenset({"encoded_path"}),
        destructive=True,
    ),
)
