"""`mcp`: the Model Context Protocol on standard input and output, for clients that start ssh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.errors import Unsupported
from boxd.ssh.cli.command import Call, Command, ExitStatus, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from boxd.principal import Principal
    from boxd.ssh.cli.command import Stdio

    Serve = Callable[[Principal, Stdio], Awaitable[None]]


def command(serve: Serve | None) -> Command:
    """Return the command. `serve` serves one client; None: the command raises Unsupported."""

    async def run(call: Call) -> ExitStatus:
        if serve is None:
            raise Unsupported("this service does not serve MCP")
        if call.stdio.terminal:
            raise UsageError("mcp is for programs: use ssh -T, which starts it without a terminal")
        await serve(call.principal, call.stdio)
        return ExitStatus()

    return Command(("mcp",), "serve an MCP client that starts ssh -T", "mcp", run)
