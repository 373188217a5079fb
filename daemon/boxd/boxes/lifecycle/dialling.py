"""Connections to TCP ports in boxes.

If the network of the box is on this host, the connection uses it and costs as much as any loopback
connection. Otherwise it uses the tunnel, where every byte is encrypted and passes the agent.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from boxd.errors import DialTimeout, NothingListening

if TYPE_CHECKING:
    from boxd.backends.interface import Backend
    from boxd.tunnel.channel import Tunnel
    from boxd.tunnel.stream import ByteStream

LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
"""Addresses where a port may listen: some programs bind `localhost` to IPv4, others to IPv6."""
DIAL_S = 10.0
READ_BYTES = 256 * 1024
"""Maximum size of one read, in bytes."""


class SocketStream:
    """A connected socket as a ByteStream. It buffers nothing, so a slow reader slows the sender."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._loop = asyncio.get_running_loop()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._socket.fileno() < 0

    async def read(self) -> bytes:
        """Return the next bytes; empty after EOF. Raises ConnectionResetError."""
        try:
            with suppress(BlockingIOError):
                return self._socket.recv(READ_BYTES)
            return await self._loop.sock_recv(self._socket, READ_BYTES)
        except OSError as error:
            raise ConnectionResetError(error.errno, error.strerror) from None

    async def write(self, data: bytes) -> None:
        """Send bytes; wait while the peer accepts no more. Raises ConnectionResetError."""
        try:
            await self._loop.sock_sendall(self._socket, data)
        except OSError as error:
            raise ConnectionResetError(error.errno, error.strerror) from None

    def write_eof(self) -> None:
        """Send EOF after the written bytes."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the peer is gone; the reader gets the error

    def close(self) -> None:
        """Close the socket. Does nothing if it is closed."""
        self._socket.close()


async def dial(backend: Backend, tunnel: Tunnel, port: int) -> ByteStream:
    """Connect to a TCP port of the box, as a process inside would.

    Raises NothingListening, DialTimeout or Unavailable.
    """
    failure: NothingListening | None = None
    for family, host in LOOPBACKS:
        try:
            return await _dial(backend, tunnel, family, host, port)
        except NothingListening as error:
            failure = failure or error
    raise failure or NothingListening(f"dial port {port}: no address")


async def _dial(backend: Backend, tunnel: Tunnel, family: int, host: str, port: int) -> ByteStream:
    connection = await backend.tcp_socket(tunnel.box_id, family)
    if connection is None:
        return await tunnel.dial(host, port)
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with asyncio.timeout(DIAL_S):
            await asyncio.get_running_loop().sock_connect(connection, (host, port))
    except BaseException as error:
        connection.close()
        if isinstance(error, TimeoutError):
            raise DialTimeout(f"dial {target}: timed out") from None
        if isinstance(error, OSError):
            reason = os.strerror(error.errno or 0).lower()
            raise NothingListening(f"dial {target}: {reason}") from None
        raise
    return SocketStream(connection)
