"""`share_*`: tokens that open one box over SSH to people without its owner's key."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from boxd.mcp.tools.boxes.boxes import REF
from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import NULLABLE_STRING, STRING, list_of
from boxd.mcp.tools.tool import Call, Tool
from boxd.names.duration import MAX_DURATION

_SHARE = {
    "id": STRING,
    "box": STRING,
    "box_id": STRING,
    "created": STRING,
    "expires": NULLABLE_STRING,
    "last_used": NULLABLE_STRING,
}


async def _list(call: Call) -> dict[str, Any]:
    shares = await call.operations.shares.list_shares(call.principal, call.args["box"])
    return {"shares": [shared.to_json() for shared in shares]}


async def _create(call: Call) -> dict[str, Any]:
    seconds = call.args["ttl_s"]
    ttl = None if seconds is None else timedelta(seconds=seconds)
    shared, token = await call.operations.shares.create_share(
        call.principal, call.args["box"], ttl=ttl
    )
    return shared.to_json() | {"token": token.reveal()}


async def _remove(call: Call) -> dict[str, Any]:
    shared = await call.operations.shares.remove_share(call.principal, call.args["id"])
    return {"removed": shared.share.id}


TOOLS = (
    Tool(
        "share_list",
        "List shares",
        "List the shares of one box, or all of them, without their tokens.",
        _list,
        (Param("box", "string", "only the shares of this box"),),
        {"shares": list_of(_SHARE)},
        read_only=True,
    ),
    Tool(
        "share_create",
        "Share a box",
        "Create a token that opens this box over SSH, including /wrk, to everyone who has it. The "
        "token is the SSH user name. Only this result shows it.",
        _create,
        (
            REF,
            Param(
                "ttl_s",
                "integer",
                "seconds until the share expires (default: until it is revoked)",
                minimum=1,
                maximum=round(MAX_DURATION.total_seconds()),
            ),
        ),
        _SHARE | {"token": STRING},
        open_world=True,
    ),
    Tool(
        "share_rm",
        "Revoke a share",
        "Revoke a share, and end the connections of the people who use it.",
        _remove,
        (Param("id", "string", "the id of the share, or the beginning of it", required=True),),
        {"removed": STRING},
        destructive=True,
    ),
)
