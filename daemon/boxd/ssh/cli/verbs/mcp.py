"""`mcp`: the Model Context Protocol over standard input and output, for clients that start ssh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.errors import Unsupported
from boxd.ssh.cli.command import Call, Command, Ended, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from boxd.principal import Principal
    from boxd.ssh.cli.command import Stdio

    Serve = Callable[[Principal, Stdio], Awaitable[None]]


def command(serve: Serve | None) -> Command:
    """The command; `serve` None: it says that there is no such service here."""

    async def run(call: Call) -> Ended:
        if serve is None:
            raise Unsupported("mcp is not served here")
        if call.stdio.terminal:
            raise UsageError("mcp is for programs: use ssh -T, and let them talk")
        await serve(call.principal, call.stdio)
        return Ended()

    return Command(("mcp",), "for MCP clients that start ssh -T", "mcp", run)
