"""Terminals over WebSocket, and the timing of their protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.http.server.websocket_protocol import SocketProtocol
from tests.harness.http.websocket import BINARY, RawSocket, connected

if TYPE_CHECKING:
    from tests.harness.http.web import Web

QUIET = b"stty -echo; PS1= exec sh\necho rea''dy\n"


def ping_often(protocol: SocketProtocol, patience: float) -> None:
    """Send pings twenty times a second from now on, and wait `patience` seconds for each answer."""
    protocol.stop_keepalive()
    protocol.ping_interval, protocol.ping_timeout = 0.05, patience
    protocol.start_keepalive()


async def opened(web: Web, query: str = "", box: str = "web") -> RawSocket:
    """Open a terminal whose shell neither echoes nor prompts."""
    terminal = await connected(web, f"/v1/boxes/{box}/term?key={web.key}{query}")
    terminal.send(BINARY, QUIET)
    await terminal.until(b"ready\r\n")
    return terminal


def protocol_of(web: Web) -> SocketProtocol:
    """Return the protocol of the server's only WebSocket."""
    server = web.server._server
    assert server is not None
    (found,) = [
        connection
        for connection in server.server_state.connections
        if isinstance(connection, SocketProtocol)
    ]
    return found
