"""Protocol adapter only. Serves the application with uvicorn inside the daemon's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import uvicorn

from boxd.api.forwarded import Forwarded, Proxies
from boxd.api.headers import MAX_HEADER_BYTES
from boxd.api.logs import quiet_uvicorn
from boxd.api.places import Places
from boxd.api.protocol import HttpProtocol, ListenerState
from boxd.api.socket_protocol import SocketProtocol
from boxd.config import Address
from boxd.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp

    from boxd.config import Config

WEBSOCKET_BYTES = 16 * 1024 * 1024
PING_S = 20.0
"""Between two pings on a WebSocket, and for the answer to one."""
KEEP_ALIVE_S = 130
"""Longer than the 120 s for which a usual front proxy keeps an idle connection: no reuse race."""
GRACE_S = 10
"""How long requests in flight may take to end when the server stops."""
BACKLOG = 1024


class ApiServer:
    """The HTTP listener. One `start`, one `close`; no state is shared between requests."""

    def __init__(self, app: ASGIApp, config: Config) -> None:
        self._app = app
        self._config = config
        self._server: _EmbeddedServer | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> Address:
        """Listens and serves; gives the address with the real port. Unavailable if taken."""
        address = self._config.api_addr
        if address is None:
            raise Unavailable("no HTTP address is configured; give --api-addr HOST:PORT")
        listener = _listen(address)
        quiet_uvicorn()
        server = _EmbeddedServer(
            _settings(self._app, self._config), Places(Proxies(self._config.trusted_proxy).networks)
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

    async def close(self) -> None:
        """Stops listening, gives requests in flight 10 s, then ends them. Idempotent."""
        if self._server is None or self._task is None:
            return
        self._server.should_exit = True
        await self._task
        self._server = self._task = None


class _EmbeddedServer(uvicorn.Server):
    """uvicorn without its own signal handlers: the daemon decides when to stop."""

    def __init__(self, config: uvicorn.Config, places: Places) -> None:
        super().__init__(config)
        self.server_state = ListenerState(places)
        self.up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the process's signal handlers alone."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends what is under way, and in the end also connections whose clients do not let go."""
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Opens the listeners."""
        await super().startup(sockets)
        self.up.set()


def _settings(app: ASGIApp, config: Config) -> uvicorn.Config:
    # The parser is named, never "auto": installing another package must not change it.
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


def _listen(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # The protocol is named because the loop sets TCP_NODELAY only then; without it a small answer,
    # sent as headers and body, waits 40 ms for the client's acknowledgement (measured).
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise Unavailable(
            f"cannot serve HTTP at {address}: {error.strerror}; choose another --api-addr"
        ) from None
    return listener
