"""What the doors are given: it serves their clients, each as its principal, to the end of either.

The protocol's library costs 0.5 s of processor time and 16 MB to load, so the first client has it
loaded, beside everything else; a service that no such client comes to does without.
"""

from __future__ import annotations

import asyncio
import importlib
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from boxd.boxes.limits.budgets.results import Budgets
from boxd.errors import TooLarge
from boxd.mcp.doors import lines, websocket
from boxd.mcp.doors.http import HttpDoor
from boxd.mcp.messages.outbox import Slow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import ModuleType

    from boxd.mcp.doors.http import Request
    from boxd.operations import Operations
    from boxd.principal import Principal

WHY = "mcp"
_BRIDGE = "boxd.mcp.library.bridge"


class Plane:
    """See the module. Critical section: `_loading` is made once, without an await in between."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._loading: asyncio.Task[ModuleType] | None = None
        self._budgets = Budgets()
        self._http = HttpDoor(operations, self._budgets, self._loaded)

    async def serve_socket(self, principal: Principal, socket: websocket.Socket) -> None:
        """One WebSocket, from its handshake on.

        Raises InvalidKey or Forbidden when the principal may not go on.
        """
        async with self._visit(principal) as bridge:
            budget = self._budgets.of(principal.owner)
            converse = partial(bridge.converse, self._operations, principal, budget)
            await websocket.serve(socket, converse)

    async def serve_request(self, principal: Principal, method: str, request: Request) -> None:
        """One HTTP request: POST, GET or DELETE. As above; BadRequest, NotFound, QuotaExceeded."""
        serve = {"POST": self._http.post, "GET": self._http.get, "DELETE": self._http.delete}
        await serve[method](principal, request)

    async def serve_lines(self, principal: Principal, stdio: lines.Stdio) -> None:
        """One client on standard input and output. As above; TooLarge for a line without end."""
        client = lines.Lines(stdio)
        async with self._visit(principal) as bridge:
            with suppress(Slow):
                budget = self._budgets.of(principal.owner)
                await bridge.converse(
                    *(self._operations, principal, budget, client.next, client.send),
                    linger=lines.LINGER_S,
                )
        if client.too_long:
            raise TooLarge(f"a message has at most {lines.MAX_LINE} bytes")

    @asynccontextmanager
    async def _visit(self, principal: Principal) -> AsyncIterator[ModuleType]:
        bridge = await self._loaded()
        async with self._operations.visits.visit(principal, WHY):
            yield bridge

    async def _loaded(self) -> ModuleType:
        if self._loading is None:
            loading = asyncio.to_thread(importlib.import_module, _BRIDGE)
            self._loading = asyncio.create_task(loading, name="mcp loading")
        return await asyncio.shield(self._loading)

    async def close(self) -> None:
        """Ends what goes on behind clients."""
        await self._http.close()
        if self._loading is not None:
            await asyncio.gather(self._loading, return_exceptions=True)
