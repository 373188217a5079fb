"""Errors of the service in the words of MCP: which tool to use next. Pure.

The core's texts name commands of the management CLI, because most of its users type them.
"""

from __future__ import annotations

import re
from types import MappingProxyType

_SEE = "; see: "
_TOOLS = MappingProxyType(
    {
        "ls": "fleet",
        "asks ls": "fleet",
        "ws ls": "ws_list",
        "secret ls": "secret_list",
    }
)
"""By the command that an error ends in."""
_REMEDIES = MappingProxyType(
    {
        "ws rm NAME": "ws_rm",
        "secret rm NAME": "secret_rm",
        "rm NAME": "box_rm",
        "suspend NAME": "box_suspend",
        "asks answer ID TEXT": "answer",
    }
)
"""By a command that stands within an error."""
_REMEDY = re.compile(r"(?<![a-z] )\b(?:" + "|".join(_REMEDIES) + r")\b")
_UNPIN = re.compile(r"unpin [a-z0-9/-]+")
_UNNAMED = "jump@HOST"


def for_tools(text: str) -> str:
    """The text with tools in the place of commands; it says so where only a command will do."""
    head, see, command = text.rpartition(_SEE)
    if see:
        tool = _TOOLS.get(command)
        where = f"call {tool}" if tool else f"no tool does that: over SSH, user cli has `{command}`"
        text = f"{head}; {where}"
    text = _UNPIN.sub("call box_pin with for_s 0", text)
    return _REMEDY.sub(lambda match: f"call {_REMEDIES[match[0]]}", text)


def addressed(text: str) -> str:
    """The text without the placeholder of a front door whose address the operator has not set."""
    return text.replace(_UNNAMED, "jump@ADDRESS (where this service takes SSH)")
