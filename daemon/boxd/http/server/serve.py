"""Protocol adapter only. Runs uvicorn inside the event loop of the daemon."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import uvicorn

from boxd.config import Address
from boxd.errors import Unavailable
from boxd.http.requests.forwarded import Forwarded, Proxies
from boxd.http.requests.headers import MAX_HEADER_BYTES
from boxd.http.server.connection_limits import ConnectionLimits
from boxd.http.server.logs import quiet_uvicorn
from boxd.http.server.protocol import HttpProtocol, ListenerState
from boxd.http.server.websocket_protocol import SocketProtocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp

    from boxd.config import Config

WEBSOCKET_BYTES = 16 * 1024 * 1024
"""Maximum size of one WebSocket message, in bytes."""
PING_S = 20.0
"""Seconds between two pings on a WebSocket, and until the pong to one."""
KEEP_ALIVE_S = 130
"""Seconds that an idle connection stays open.

Longer than the usual 120 s of a proxy in front, so the proxy never reuses a connection that the
service is closing."""
GRACE_S = 10
"""Seconds that requests in progress get to finish when the server stops."""
BACKLOG = 1024


class ApiServer:
    """The HTTP listener. Call `start` once and `close` once. Requests share no state."""

    def __init__(self, app: ASGIApp, config: Config, bound: socket.socket | None = None) -> None:
        """`bound` is the bound socket of the address; None: `start` binds one."""
        self._app = app
        self._config = config
        self._bound = bound
        self._server: _EmbeddedServer | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> Address:
        """Listen and serve. Return the address with the actual port.

        Raises Unavailable if no address is configured or the address is in use.
        """
        address = self._config.api_addr
        if address is None:
            raise Unavailable("no HTTP address is configured; give --api-addr HOST:PORT")
        listener = bind(address) if self._bound is None else self._bound.dup()
        try:
            listener.listen(BACKLOG)
        except OSError as error:  # another program listens on the address since it was bound
            listener.close()
            raise _refused(address, error) from None
        listener.setblocking(False)
        quiet_uvicorn()
        server = _EmbeddedServer(
            _settings(self._app, self._config),
            ConnectionLimits(Proxies(self._config.trusted_proxy).networks),
        )
        self._server = server
        self._task = asyncio.create_task(server.serve(sockets=[listener]), name="http api")
        up = asyncio.create_task(server.up.wait())
        await asyncio.wait({self._task, up}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            up.cancel()
            listener.close()
            self._task.result()
        return Address(address.host, listener.getsockname()[1])

    def connections(self) -> int:
        """Return the number of open connections."""
        return 0 if self._server is None else len(self._server.server_state.connections)

    async def close(self) -> None:
        """Stop listening, wait up to 10 s for requests in progress, then abort them. Idempotent."""
        if self._server is None or self._task is None:
            return
        self._server.should_exit = True
        if self._bound is not None:
            with contextlib.suppress(OSError):
                self._bound.shutdown(socket.SHUT_RDWR)  # other processes have the socket as well
        await self._task
        self._server = self._task = None


class _EmbeddedServer(uvicorn.Server):
    """uvicorn without its signal handlers: the daemon decides when to stop."""

    def __init__(self, config: uvicorn.Config, limits: ConnectionLimits) -> None:
        super().__init__(config)
        self.server_state = ListenerState(limits)
        self.up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signal handlers of the process unchanged."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End requests in progress, then abort connections that clients have not closed."""
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the listeners."""
        await super().startup(sockets)
        self.up.set()


def _settings(app: ASGIApp, config: Config) -> uvicorn.Config:
    # The parser is explicit, not "auto": installing another package must not change it.
    return uvicorn.Config(
        Forwarded(app, config.trusted_proxy),
        loop="none",
        http=HttpProtocol,
        ws=SocketProtocol,
        lifespan="off",
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ws_max_size=WEBSOCKET_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=PING_S,
        ws_ping_timeout=PING_S,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        proxy_headers=False,  # `Forwarded` reads them
        server_header=False,
        date_header=False,
        access_log=False,
        log_config=None,
    )


def bind(address: Address) -> socket.socket:
    """Return a socket that is bound, but does not listen. Raises Unavailable with the reason."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # The protocol is explicit because only then does the loop set TCP_NODELAY. Without it a small
    # response, sent as headers and body, waits 40 ms for the client's acknowledgement (measured).
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
    except OSError as error:
        listener.close()
        raise _refused(address, error) from None
    return listener


def _refused(address: Address, error: OSError) -> Unavailable:
    return Unavailable(
        f"cannot serve HTTP at {address}: {error.strerror}; choose another --api-addr"
    )
