"""`surface_*`: documents for people. Each scope has its own documents."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, get_args

from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import INTEGER, NULLABLE_STRING, STRING, list_of
from boxd.mcp.tools.tool import Call, Tool
from boxd.model.canvas import Mime
from boxd.operations.canvases import LONGEST_TTL, MAX_CONTENT

ID = Param(
    "id", "string", "the id of the document: 1 to 64 characters of a-z, 0-9 and '-'", required=True
)


async def _render(call: Call) -> dict[str, Any]:
    ttl = call.args["ttl_s"]
    canvas = await call.operations.canvases.render_canvas(
        call.principal,
        call.args["id"],
        call.args["content"],
        mime=call.args["mime"],
        title=call.args["title"],
        ttl=None if ttl is None else timedelta(seconds=ttl),
    )
    return {"uri": canvas.uri, "revision": canvas.revision}


async def _list(call: Call) -> dict[str, Any]:
    canvases = await call.operations.canvases.list_canvases(call.principal)
    return {"surfaces": [canvas.to_json() for canvas in canvases]}


async def _rm(call: Call) -> dict[str, Any]:
    canvas = await call.operations.canvases.remove_canvas(call.principal, call.args["id"])
    return {"id": canvas.id}


TOOLS = (
    Tool(
        "surface_render",
        "Show a document",
        "Show the owner a document. It replaces an earlier document with the same id. The document "
        "is also a resource, so clients can subscribe to its changes.",
        _render,
        (
            ID,
            Param("content", "string", f"the document, at most {MAX_CONTENT} bytes", required=True),
            Param(
                "mime",
                "string",
                "the media type of the content",
                default="text/markdown",
                choices=get_args(Mime),
            ),
            Param("title", "string", "the title above the document", default=""),
            Param(
                "ttl_s",
                "integer",
                "remove the document after this many seconds (default: never)",
                minimum=1,
                maximum=int(LONGEST_TTL.total_seconds()),
            ),
        ),
        {"uri": STRING, "revision": INTEGER},
        idempotent=True,
    ),
    Tool(
        "surface_list",
        "List documents",
        "List the documents that are shown to the owner.",
        _list,
        result={
            "surfaces": list_of(
                {
                    "id": STRING,
                    "title": STRING,
                    "mime": STRING,
                    "revision": INTEGER,
                    "scope": NULLABLE_STRING,
                }
            )
        },
        read_only=True,
    ),
    Tool(
        "surface_rm",
        "Remove a document",
        "Remove a document.",
        _rm,
        (ID,),
        {"id": STRING},
        destructive=True,
    ),
)
