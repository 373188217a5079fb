"""`key_*`: list and revoke API keys. Only SSH creates them."""

from __future__ import annotations

from typing import Any

from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import NULLABLE_STRING, STRING, list_of
from boxd.mcp.tools.tool import Call, Tool

_KEY = {
    "name": STRING,
    "scope": NULLABLE_STRING,
    "created": STRING,
    "expires": NULLABLE_STRING,
    "last_used": NULLABLE_STRING,
}


async def _list(call: Call) -> dict[str, Any]:
    keys = await call.operations.keys.list_keys(call.principal)
    return {"keys": [key.to_json() for key in keys]}


async def _remove(call: Call) -> dict[str, Any]:
    name = call.args["name"]
    await call.operations.keys.remove_key(call.principal, name)
    return {"removed": name}


TOOLS = (
    Tool(
        "key_list",
        "List API keys",
        "List the API keys of the account, without the keys themselves.",
        _list,
        result={"keys": list_of(_KEY)},
        read_only=True,
    ),
    Tool(
        "key_rm",
        "Revoke an API key",
        "Revoke an API key, and end its connections.",
        _remove,
        (Param("name", "string", "the name of the key", required=True),),
        {"removed": STRING},
        destructive=True,
    ),
)
