"""The listener for metrics: a small HTTP server that knows one path and asks for no key.

It is reachable at a private address only. Its cost is bounded: connections, the size of a request,
the time of a connection and the number of times that the text is built.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from boxd.errors import Unavailable
from boxd.names.address import Address

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PATH = b"/metrics"
MAX_CLIENTS = 16
"""Maximum number of open connections. A further one is closed at once."""
MAX_HEAD = 8192
"""Maximum size of a request, in bytes."""
READ_S = 5.0
"""Seconds within which a client must send its request."""
WRITE_S = 10.0
"""Seconds within which a client must read the answer."""
FRESH_S = 1.0
"""Seconds for which a text is served again, so that many scrapers cost as much as one."""
BACKLOG = 64
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_log = logging.getLogger(__name__)


class CachedText:
    """The text of the metrics, built at most once in FRESH_S, for all clients."""

    def __init__(self, build: Callable[[], Awaitable[bytes]]) -> None:
        self._build = build
        self._lock = asyncio.Lock()
        self._text = b""
        self._fresh_until = 0.0

    async def get(self) -> bytes:
        """Return a text that is at most FRESH_S old."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            if loop.time() >= self._fresh_until:
                self._text = await self._build()
                self._fresh_until = loop.time() + FRESH_S
            return self._text


class MetricsListener:
    """Serves `GET /metrics`. Call `start` once and `close` once.

    Critical section: `_clients` changes without an await.
    """

    def __init__(
        self,
        address: Address,
        build: Callable[[], Awaitable[bytes]],
        bound: socket.socket | None = None,
    ) -> None:
        """`bound` is the bound socket of the address; None: `start` binds one."""
        self._address = address
        self._text = CachedText(build)
        self._bound = bound
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    @property
    def clients(self) -> int:
        """Number of open connections."""
        return len(self._clients)

    async def start(self) -> Address:
        """Listen; return the address with the actual port. Raises Unavailable."""
        listener = bind(self._address) if self._bound is None else self._bound.dup()
        try:
            self._server = await asyncio.start_server(
                self._serve, sock=listener, backlog=BACKLOG, limit=MAX_HEAD
            )
        except OSError as error:
            listener.close()
            raise _refused(self._address, error) from None
        return Address(self._address.host, listener.getsockname()[1])

    async def close(self) -> None:
        """Stop listening and end all connections. Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        if self._bound is not None:
            with suppress(OSError):
                self._bound.shutdown(socket.SHUT_RDWR)  # other processes have the socket as well
        for client in list(self._clients):
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._clients) >= MAX_CLIENTS:
            writer.transport.abort()
            return
        self._clients.add(task)
        try:
            await self._answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()  # also TimeoutError: the client is too slow
        except asyncio.CancelledError:
            writer.transport.abort()
        except Exception:
            _log.exception("metrics cannot be read")
            writer.transport.abort()
        finally:
            self._clients.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(READ_S):
            head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if path != PATH:
            answer = _response(b"404 Not Found", b"metrics are at /metrics\n", b"text/plain")
        elif method not in (b"GET", b"HEAD"):
            answer = _response(b"405 Method Not Allowed", b"use GET\n", b"text/plain")
        else:
            answer = _response(b"200 OK", await self._text.get(), CONTENT_TYPE)
        if method == b"HEAD":
            answer = answer[: answer.index(b"\r\n\r\n") + 4]
        async with asyncio.timeout(WRITE_S):
            writer.write(answer)
            writer.close()
            await writer.wait_closed()


def _response(status: bytes, body: bytes, content_type: bytes) -> bytes:
    lines = (
        b"HTTP/1.1 " + status,
        b"content-type: " + content_type,
        b"content-length: %d" % len(body),
        b"cache-control: no-store",
        b"connection: close",
        b"",
        body,
    )
    return b"\r\n".join(lines)


def bind(address: Address) -> socket.socket:
    """Return a socket that is bound, but does not listen. Raises Unavailable with the reason."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
    except OSError as error:
        listener.close()
        raise _refused(address, error) from None
    listener.setblocking(False)
    return listener


def _refused(address: Address, error: OSError) -> Unavailable:
    return Unavailable(
        f"cannot serve metrics at {address}: {error.strerror}; choose another --metrics-addr"
    )
