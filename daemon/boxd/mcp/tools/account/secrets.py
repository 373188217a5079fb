"""`secret_*`: environment variables for new processes in boxes. No tool returns a value."""

from __future__ import annotations

from typing import Any

from boxd.mcp.tools.boxes.boxes import WS
from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import BOOLEAN, NULLABLE_STRING, STRING, list_of
from boxd.mcp.tools.tool import Call, Tool
from boxd.secret import Secret

TIERS = ("account", "workspace")
NAME = Param("name", "string", "the name of the environment variable", required=True)
_TIER_DESCRIPTION = (
    "the whole account, or one workspace; in a workspace its own secrets override the account's"
)
_SECRET = {"name": STRING, "tier": STRING, "ws": NULLABLE_STRING, "updated": STRING}
TIER = Param("tier", "string", _TIER_DESCRIPTION, default="workspace", choices=TIERS)


async def _list(call: Call) -> dict[str, Any]:
    secrets = await call.operations.secrets.list_secrets(call.principal, call.args["ws"])
    tier = call.args["tier"]
    return {"secrets": [secret.to_json() for secret in secrets if tier in (None, secret.tier)]}


async def _set(call: Call) -> dict[str, Any]:
    secret, created = await call.operations.secrets.set_secret(
        call.principal,
        call.args["name"],
        Secret(call.args["value"]),
        tier=call.args["tier"],
        ws=call.args["ws"],
    )
    return {"name": secret.name, "tier": secret.tier, "created": created}


async def _rm(call: Call) -> dict[str, Any]:
    secret = await call.operations.secrets.remove_secret(
        call.principal, call.args["name"], tier=call.args["tier"], ws=call.args["ws"]
    )
    return {"name": secret.name}


TOOLS = (
    Tool(
        "secret_list",
        "List secrets",
        "List the names of your secrets, without their values.",
        _list,
        (Param("tier", "string", _TIER_DESCRIPTION, choices=TIERS), WS),
        {"secrets": list_of(_SECRET)},
        read_only=True,
    ),
    Tool(
        "secret_set",
        "Set a secret",
        "Set an environment variable for processes that start in your boxes from now on.",
        _set,
        (NAME, Param("value", "string", "the value; no tool returns it", required=True), TIER, WS),
        {"name": STRING, "tier": STRING, "created": BOOLEAN},
        destructive=True,
        idempotent=True,
    ),
    Tool(
        "secret_rm",
        "Remove a secret",
        "Remove a secret. Running processes keep its value.",
        _rm,
        (NAME, TIER, WS),
        {"name": STRING},
        destructive=True,
    ),
)
