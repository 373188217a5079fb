"""Terminals over WebSocket, and their protocol's timing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.http.server.websocket_protocol import SocketProtocol
from tests.harness.http.websocket import BINARY, RawSocket, connected

if TYPE_CHECKING:
    from tests.harness.http.web import Web

QUIET = b"stty -echo; PS1= exec sh\necho rea''dy\n"


def ping_often(protocol: SocketProtocol, patience: float) -> None:
    """Pings twenty times a second from now on; for each answer it waits so many seconds."""
    protocol.stop_keepalive()
    protocol.ping_interval, protocol.ping_timeout = 0.05, patience
    protocol.start_keepalive()


async def opened(web: Web, query: str = "", box: str = "web") -> RawSocket:
    """A terminal whose shell neither echoes nor prompts."""
    terminal = await connected(web, f"/v1/boxes/{box}/term?key={web.key}{query}")
    terminal.send(BINARY, QUIET)
    await terminal.until(b"ready\r\n")
    return terminal


def protocol_of(web: Web) -> SocketProtocol:
    """The one WebSocket of the server."""
    server = web.server._server
    assert server is not None
    (found,) = [
        connection
        for connection in server.server_state.connections
        if isinstance(connection, SocketProtocol)
    ]
    return found
