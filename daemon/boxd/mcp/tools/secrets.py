"""`secret_*`: variables for all that is started in boxes. A value never comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from boxd.mcp.tools.boxes import WS
from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import BOOLEAN, MAYBE, STRING, listed
from boxd.mcp.tools.tool import Call, Tool
from boxd.secret import Secret

if TYPE_CHECKING:
    from boxd.model.secret import StoredSecret

TIERS = ("account", "workspace")
NAME = Param("name", "string", "of the variable", required=True)
_TIER_ABOUT = "of the whole account, or of one workspace, whose own win there"
TIER = Param("tier", "string", _TIER_ABOUT, default="workspace", choices=TIERS)


async def _list(call: Call) -> dict[str, Any]:
    found = await call.operations.secrets.list_secrets(call.principal, call.args["ws"])
    tier = call.args["tier"]
    return {"secrets": [_json(one) for one in found if tier in (None, one.tier)]}


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
    gone = await call.operations.secrets.remove_secret(
        call.principal, call.args["name"], tier=call.args["tier"], ws=call.args["ws"]
    )
    return {"name": gone.name}


def _json(one: StoredSecret) -> dict[str, Any]:
    return {
        "name": one.name,
        "tier": one.tier,
        "ws": one.workspace,
        "updated": one.updated.isoformat(),
    }


TOOLS = (
    Tool(
        "secret_list",
        "List secrets",
        "Lists secrets, never their values.",
        _list,
        (Param("tier", "string", _TIER_ABOUT, choices=TIERS), WS),
        {"secrets": listed({"name": STRING, "tier": STRING, "ws": MAYBE, "updated": STRING})},
        reads=True,
    ),
    Tool(
        "secret_set",
        "Set a secret",
        "Keeps a variable that what is started in your boxes from now on gets.",
        _set,
        (NAME, Param("value", "string", "never shown again", required=True), TIER, WS),
        {"name": STRING, "tier": STRING, "created": BOOLEAN},
        destroys=True,
        repeatable=True,
    ),
    Tool(
        "secret_rm",
        "Remove a secret",
        "Forgets a secret; what runs already keeps it.",
        _rm,
        (NAME, TIER, WS),
        {"name": STRING},
        destroys=True,
    ),
)
