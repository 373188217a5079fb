"""Connections to TCP ports in boxes.

Through the box's network where it is on this host, which costs no more than any connection on
loopback; else through the tunnel, where every byte is encrypted and passes the agent.
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
"""Where a port is looked for: to some programs `localhost` is the one, to some the other."""
DIAL_S = 10.0
READ_BYTES = 256 * 1024
"""Most bytes of one read."""


class SocketStream:
    """A connected socket as a ByteStream. Nothing is kept here: who does not read holds it up."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._loop = asyncio.get_running_loop()

    @property
    def closed(self) -> bool:
        """See ByteStream; here only after `close`."""
        return self._socket.fileno() < 0

    async def read(self) -> bytes:
        """See ByteStream."""
        try:
            with suppress(BlockingIOError):
                return self._socket.recv(READ_BYTES)
            return await self._loop.sock_recv(self._socket, READ_BYTES)
        except OSError as error:
            raise ConnectionResetError(error.errno, error.strerror) from None

    async def write(self, data: bytes) -> None:
        """See ByteStream."""
        try:
            await self._loop.sock_sendall(self._socket, data)
        except OSError as error:
            raise ConnectionResetError(error.errno, error.strerror) from None

    def write_eof(self) -> None:
        """See ByteStream."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return  # it was cut, which the reader is told

    def close(self) -> None:
        """See ByteStream."""
        self._socket.close()


async def dial(backend: Backend, tunnel: Tunnel, port: int) -> ByteStream:
    """Connects to a port of the box of a tunnel, as seen from inside. NothingListening,
    DialTimeout, Unavailable."""
    failure: NothingListening | None = None
    for family, host in LOOPBACKS:
        try:
            return await _dial(backend, tunnel, family, host, port)
        except NothingListening as error:
            failure = failure or error
    raise failure or NothingListening(f"dial port {port}: no address")


async def _dial(backend: Backend, tunnel: Tunnel, family: int, host: str, port: int) -> ByteStream:
    made = await backend.tcp_socket(tunnel.box_id, family)
    if made is None:
        return await tunnel.dial(host, port)
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with asyncio.timeout(DIAL_S):
            await asyncio.get_running_loop().sock_connect(made, (host, port))
    except BaseException as error:
        made.close()
        if isinstance(error, TimeoutError):
            raise DialTimeout(f"dial {target}: timed out") from None
        if isinstance(error, OSError):
            reason = os.strerror(error.errno or 0).lower()
            raise NothingListening(f"dial {target}: {reason}") from None
        raise
    return SocketStream(made)
