"""The MCP service: it serves clients of all transports, each as its principal.

The MCP library costs 0.5 s of processor time and 16 MB of memory to load. The first client loads
it, in a thread. A daemon without MCP clients never loads it.
"""

from __future__ import annotations

import asyncio
import importlib
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from boxd.boxes.limits.budgets.results import Budgets
from boxd.errors import TooLarge
from boxd.mcp.messages.outbox import SlowClient
from boxd.mcp.transports import stdio, websocket
from boxd.mcp.transports.http import VISIT_REASON, HttpTransport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import ModuleType

    from boxd.mcp.transports.http import Request
    from boxd.operations import Operations
    from boxd.principal import Principal

_BRIDGE = "boxd.mcp.library.bridge"


class McpService:
    """Serves MCP clients. Critical section: `_loading` is set without an await."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._loading: asyncio.Task[ModuleType] | None = None
        self._budgets = Budgets()
        self._http = HttpTransport(operations, self._budgets, self._load_bridge)

    async def serve_socket(self, principal: Principal, socket: websocket.Socket) -> None:
        """Serve one WebSocket, beginning with its handshake.

        Raises InvalidKey or Forbidden when the principal loses its access.
        """
        async with self._visit(principal) as bridge:
            budget = self._budgets.of(principal.owner)
            serve_connection = partial(bridge.serve_connection, self._operations, principal, budget)
            await websocket.serve(socket, serve_connection)

    async def serve_request(self, principal: Principal, method: str, request: Request) -> None:
        """Serve one HTTP request: POST, GET or DELETE.

        Raises the errors of `serve_socket`, and BadRequest, NotFound and QuotaExceeded.
        """
        serve = {"POST": self._http.post, "GET": self._http.get, "DELETE": self._http.delete}
        await serve[method](principal, request)

    async def serve_lines(self, principal: Principal, streams: stdio.Stdio) -> None:
        """Serve one client on standard input and output.

        Raises the errors of `serve_socket`, and TooLarge for a line that is too long.
        """
        client = stdio.StdioClient(streams)
        async with self._visit(principal) as bridge:
            budget = self._budgets.of(principal.owner)
            with suppress(SlowClient):
                await bridge.serve_connection(
                    self._operations,
                    principal,
                    budget,
                    client.next,
                    client.send,
                    linger=stdio.LINGER_S,
                )
        if client.too_long:
            raise TooLarge(f"the message is longer than {stdio.MAX_LINE} bytes; send a shorter one")

    @asynccontextmanager
    async def _visit(self, principal: Principal) -> AsyncIterator[ModuleType]:
        bridge = await self._load_bridge()
        async with self._operations.visits.visit(principal, VISIT_REASON):
            yield bridge

    async def _load_bridge(self) -> ModuleType:
        if self._loading is None:
            loading = asyncio.to_thread(importlib.import_module, _BRIDGE)
            self._loading = asyncio.create_task(loading, name="mcp loading")
        return await asyncio.shield(self._loading)

    async def close(self) -> None:
        """End all HTTP sessions, and wait until the library is loaded if it is being loaded."""
        await self._http.close()
        if self._loading is not None:
            await asyncio.gather(self._loading, return_exceptions=True)
