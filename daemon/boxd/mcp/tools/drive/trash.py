"""`wrk_trash` and `wrk_restore`: removed files on the drive of a workspace."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote_to_bytes

from boxd.mcp.tools.boxes.boxes import WS
from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import BOOLEAN, INTEGER, NULLABLE_STRING, STRING, list_of
from boxd.mcp.tools.tool import Call, Tool
from boxd.workspaces.trash import (
    DEFAULT_PAGE,
    ENTRY_BYTES,
    MAX_NUMBER,
    MAX_PAGE,
    RestoreRequest,
    TrashQuery,
)

_ENTRY = {
    "number": INTEGER,
    "path": NULLABLE_STRING,
    "encoded_path": STRING,
    "name": STRING,
    "encoded_name": STRING,
    "is_dir": BOOLEAN,
    "is_link": BOOLEAN,
    "size": INTEGER,
    "deleted": STRING,
}
_ENCODED = Param(
    "encoded",
    "boolean",
    "paths are percent-encoded, as in encoded_path; for names that are not UTF-8",
    default=False,
)


async def _list(call: Call) -> dict[str, Any]:
    query = TrashQuery(
        below=_path(call, "path") or b"", cursor=call.args["cursor"], limit=call.args["limit"]
    )
    page = await call.operations.trash.list_trash(call.principal, query, call.args["ws"])
    await call.reserve(
        sum(ENTRY_BYTES + len(one.path or b"") + len(one.name) for one in page.entries)
    )
    result: dict[str, Any] = {"entries": [one.to_json() for one in page.entries]}
    if page.cursor is not None:
        result["next"] = page.cursor
    return result


async def _restore(call: Call) -> dict[str, Any]:
    request = RestoreRequest(
        path=_path(call, "path"), number=call.args["number"], to=_path(call, "to")
    )
    restored = await call.operations.trash.restore(call.principal, request, call.args["ws"])
    return restored.to_json()


def _path(call: Call, name: str) -> bytes | None:
    """Return a path argument as bytes, or None."""
    path: str | None = call.args[name]
    if path is None:
        return None
    return unquote_to_bytes(path) if call.args["encoded"] else path.encode("utf-8")


TOOLS = (
    Tool(
        "wrk_trash",
        "List removed files of the drive",
        "List removed files and directories of the drive that can be restored, the newest first. "
        "Pass `next` of the result as `cursor` to get the following entries.",
        _list,
        (
            Param("path", "string", "list only entries at or below this path", default="/"),
            Param("cursor", "string", "`next` of the previous result"),
            Param(
                "limit",
                "integer",
                "the maximum number of entries",
                default=DEFAULT_PAGE,
                minimum=1,
                maximum=MAX_PAGE,
            ),
            WS,
            _ENCODED,
        ),
        {"entries": list_of(_ENTRY), "next": STRING},
        frozenset({"next"}),
        read_only=True,
    ),
    Tool(
        "wrk_restore",
        "Restore a removed file of the drive",
        "Restore a removed file, or a directory with everything that was removed from it. Give its "
        "former path, or its number in the list of wrk_trash. An existing path is never replaced.",
        _restore,
        (
            Param("path", "string", "the former path on the drive"),
            Param(
                "number",
                "integer",
                "the number of the entry in the list of wrk_trash",
                minimum=1,
                maximum=MAX_NUMBER,
            ),
            Param("to", "string", "the new path; its directory must exist"),
            WS,
            _ENCODED,
        ),
        {
            "path": STRING,
            "encoded_path": STRING,
            "files": INTEGER,
            "directories": INTEGER,
            "missing": list_of({"path": STRING, "encoded_path": STRING, "reason": STRING}),
            "missing_count": INTEGER,
            "earlier_count": INTEGER,
        },
        frozenset({"encoded_path"}),
    ),
)
