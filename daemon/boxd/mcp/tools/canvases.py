"""`surface_*`: documents that are rendered for people, each scope its own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, get_args

from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import INTEGER, MAYBE, STRING, listed
from boxd.mcp.tools.tool import Call, Tool
from boxd.model.canvas import Mime
from boxd.operations.canvases import LONGEST_TTL, MAX_CONTENT

ID = Param("id", "string", "1 to 64 of a-z, 0-9 and '-'", required=True)


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
    found = await call.operations.canvases.list_canvases(call.principal)
    return {"surfaces": [canvas.to_json() for canvas in found]}


async def _rm(call: Call) -> dict[str, Any]:
    gone = await call.operations.canvases.remove_canvas(call.principal, call.args["id"])
    return {"id": gone.id}


TOOLS = (
    Tool(
        "surface_render",
        "Show a document",
        "Shows the owner a document, in the place of an older one of its id. It is a resource: who "
        "reads it is told when it changes.",
        _render,
        (
            ID,
            Param("content", "string", f"at most {MAX_CONTENT} bytes", required=True),
            Param(
                "mime",
                "string",
                "what the content is",
                default="text/markdown",
                choices=get_args(Mime),
            ),
            Param("title", "string", "shown above it", default=""),
            Param(
                "ttl_s",
                "integer",
                "seconds after which it is gone; left out: never",
                minimum=1,
                maximum=int(LONGEST_TTL.total_seconds()),
            ),
        ),
        {"uri": STRING, "revision": INTEGER},
        repeatable=True,
    ),
    Tool(
        "surface_list",
        "List documents",
        "Lists the documents that are shown.",
        _list,
        result={
            "surfaces": listed(
                {"id": STRING, "title": STRING, "mime": STRING, "revision": INTEGER, "scope": MAYBE}
            )
        },
        reads=True,
    ),
    Tool(
        "surface_rm",
        "Remove a document",
        "Removes a document.",
        _rm,
        (ID,),
        {"id": STRING},
        destroys=True,
    ),
)
