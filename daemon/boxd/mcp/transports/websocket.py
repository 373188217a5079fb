"""The transport for WebSocket clients: one message per frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from boxd.mcp.messages.outbox import SlowClient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Receive = Callable[[], Awaitable[bytes | str | None]]
    Send = Callable[[str], Awaitable[None]]
    ServeConnection = Callable[[Receive, Send], Awaitable[None]]

SUBPROTOCOL = "mcp"
TRY_AGAIN_LATER = 1013
"""The WebSocket close code of the same name."""


class Socket(Protocol):
    """A WebSocket before its handshake. `send` raises when the client has disconnected."""

    subprotocols: list[str]

    async def accept(self, subprotocol: str | None = None) -> None:
        """Complete the handshake."""
        ...

    async def next(self) -> bytes | str | None:
        """Wait for and return the next message; None at the end."""
        ...

    async def send(self, data: bytes | str) -> None:
        """Send one message. Waits while the connection accepts no more data."""
        ...

    async def close(self, code: int, reason: str = "") -> None:
        """Close the connection."""
        ...


async def serve(socket: Socket, serve_connection: ServeConnection) -> None:
    """Serve one client until it disconnects."""
    await socket.accept(SUBPROTOCOL if SUBPROTOCOL in socket.subprotocols else None)
    try:
        await serve_connection(socket.next, socket.send)
    except SlowClient as error:
        await socket.close(TRY_AGAIN_LATER, str(error))
