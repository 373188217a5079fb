"""`mcp`: the place of the Model Context Protocol over standard input and output."""

from __future__ import annotations

from boxd.errors import Unsupported
from boxd.frontdoor.commands.command import Call, Command, Ended


async def _run(call: Call) -> Ended:
    raise Unsupported("mcp is not served by this release")


COMMANDS = (Command(("mcp",), "for MCP clients: not served by this release", "mcp", _run),)
