"""The door for clients with a WebSocket: one message per frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from boxd.mcp.messages.outbox import Slow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Receive = Callable[[], Awaitable[bytes | str | None]]
    Send = Callable[[str], Awaitable[None]]
    Converse = Callable[[Receive, Send], Awaitable[None]]

SUBPROTOCOL = "mcp"
TRY_AGAIN = 1013


class Socket(Protocol):
    """A WebSocket before its handshake. Sending raises what tells that the client is gone."""

    subprotocols: list[str]

    async def accept(self, subprotocol: str | None = None) -> None:
        """Completes the handshake."""
        ...

    async def next(self) -> bytes | str | None:
        """The next message; None at the end."""
        ...

    async def send(self, data: bytes | str) -> None:
        """One message; waits while the connection takes no more."""
        ...

    async def close(self, code: int, reason: str = "") -> None:
        """Ends it."""
        ...


async def serve(socket: Socket, converse: Converse) -> None:
    """Serves one client to its end."""
    await socket.accept(SUBPROTOCOL if SUBPROTOCOL in socket.subprotocols else None)
    try:
        await converse(socket.next, socket.send)
    except Slow as error:
        await socket.close(TRY_AGAIN, str(error))
