"""`whoami`, `stat`, `image_list` and `flavor_list`: identity, figures and catalogs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import BOOLEAN, INTEGER, NULLABLE_STRING, NUMBER, STRING, list_of
from boxd.mcp.tools.tool import Call, Tool

_NULLABLE_NUMBER = {"type": ["number", "null"]}
_STRINGS = {"type": "array", "items": STRING}


async def _whoami(call: Call) -> dict[str, Any]:
    identity = await call.operations.stats.whoami(call.principal)
    return identity.to_json()


async def _stat(call: Call) -> dict[str, Any]:
    box = call.args["box"]
    stats = call.operations.stats
    figures = await (
        stats.account_stats(call.principal) if box is None else stats.box_stats(call.principal, box)
    )
    return {"figures": [figure.to_json() for figure in figures]}


async def _images(call: Call) -> dict[str, Any]:
    return {"images": [asdict(image) for image in call.operations.catalog.images()]}


async def _flavors(call: Call) -> dict[str, Any]:
    return {"flavors": [flavor.to_json() for flavor in call.operations.catalog.flavors()]}


TOOLS = (
    Tool(
        "whoami",
        "Show your identity",
        "Show the owner of this connection, its tier, and the workspace that confines it.",
        _whoami,
        result={
            "fingerprint": STRING,
            "key": NULLABLE_STRING,
            "name": NULLABLE_STRING,
            "tier": STRING,
            "boxes": INTEGER,
            "workspaces": _STRINGS,
            "workspaces_with_boxes": _STRINGS,
            "api_keys": {"type": ["integer", "null"]},
            "scope": NULLABLE_STRING,
        },
        read_only=True,
    ),
    Tool(
        "stat",
        "Show usage and limits",
        "Show the usage and the limits of the account, or of one box.",
        _stat,
        (Param("box", "string", "only this box (default: the account)"),),
        {
            "figures": list_of(
                {
                    "what": STRING,
                    "unit": STRING,
                    "used": _NULLABLE_NUMBER,
                    "limit": _NULLABLE_NUMBER,
                }
            )
        },
        read_only=True,
    ),
    Tool(
        "image_list",
        "List images",
        "List the images that a box can start from.",
        _images,
        result={"images": list_of({"name": STRING, "description": STRING, "built": BOOLEAN})},
        read_only=True,
    ),
    Tool(
        "flavor_list",
        "List flavors",
        "List the flavors: names for resource limits of a box.",
        _flavors,
        result={
            "flavors": list_of(
                {"name": STRING, "description": STRING, "cpus": NUMBER, "mem_mb": INTEGER}
            )
        },
        read_only=True,
    ),
)
