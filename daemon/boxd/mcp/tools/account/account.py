"""`account_*`: the name and the SSH keys of the account. Only SSH adds keys."""

from __future__ import annotations

from typing import Any

from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import BOOLEAN, NULLABLE_STRING, STRING, list_of
from boxd.mcp.tools.tool import Call, Tool

_KEY = {
    "name": STRING,
    "fingerprint": STRING,
    "first": BOOLEAN,
    "public_key": NULLABLE_STRING,
    "added": NULLABLE_STRING,
    "last_used": NULLABLE_STRING,
}


async def _list(call: Call) -> dict[str, Any]:
    keys = await call.operations.ssh_keys.list_keys(call.principal)
    return {"keys": [key.to_json() for key in keys]}


async def _remove(call: Call) -> dict[str, Any]:
    key = await call.operations.ssh_keys.remove_key(call.principal, call.args["key"])
    return {"removed": key.fingerprint}


async def _name(call: Call) -> dict[str, Any]:
    name = await call.operations.accounts.set_name(call.principal, call.args["name"])
    return {"name": name}


TOOLS = (
    Tool(
        "account_key_list",
        "List SSH keys",
        "List the SSH keys that open the account.",
        _list,
        result={"keys": list_of(_KEY)},
        read_only=True,
    ),
    Tool(
        "account_key_rm",
        "Remove an SSH key",
        "Remove an SSH key from the account for ever, and end its connections.",
        _remove,
        (Param("key", "string", "the name or the fingerprint of the key", required=True),),
        {"removed": STRING},
        destructive=True,
    ),
    Tool(
        "account_name",
        "Name the account",
        "Set the display name of the account.",
        _name,
        (Param("name", "string", "the name (default: none)"),),
        {"name": NULLABLE_STRING},
    ),
)
