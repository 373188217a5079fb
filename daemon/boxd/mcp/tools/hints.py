"""Rewrites errors of the service for MCP clients: tools replace CLI commands. Pure functions.

The errors name commands of the management CLI, because most users type commands.
"""

from __future__ import annotations

import re
from types import MappingProxyType

from boxd.operations.verbs import VERBS

_SEE = "; see: "
_TOOLS = MappingProxyType(
    {command: verb.mcp[0] for verb in VERBS if verb.mcp for command in verb.ssh}
)
"""Tools, by the command at the end of an error."""
_REMEDIES = MappingProxyType(
    {
        "ws rm NAME": "ws_rm",
        "secret rm NAME": "secret_rm",
        "profiles rm NAME": "profile_rm",
        "rm NAME": "box_rm",
        "suspend NAME": "box_suspend",
        "snapshot fork": "box_fork",
        "asks answer ID TEXT": "answer",
    }
)
"""Tools, by a command within an error."""
_REMEDY = re.compile(r"(?<![a-z] )\b(?:" + "|".join(_REMEDIES) + r")\b")
_UNPIN = re.compile(r"unpin [a-z0-9/-]+")
_HOST_PLACEHOLDER = "jump@HOST"


def with_tool_names(text: str) -> str:
    """Replace commands with tools. If no tool does the same, the text says which command does."""
    head, separator, command = text.rpartition(_SEE)
    if separator:
        tool = _TOOLS.get(command)
        hint = (
            f"call {tool}" if tool else f"no tool does that: over SSH, run `{command}` as user cli"
        )
        text = f"{head}; {hint}"
    text = _UNPIN.sub("call box_pin with for_s 0", text)
    return _REMEDY.sub(lambda match: f"call {_REMEDIES[match[0]]}", text)


def with_address_hint(text: str) -> str:
    """Explain the placeholder for the SSH host, which stays if the operator set no address."""
    return text.replace(_HOST_PLACEHOLDER, "jump@ADDRESS (the SSH address of this service)")
