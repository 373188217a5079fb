"""The place where one box's agent dials in: a Unix socket, and who may come through it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from functools import partial
from typing import TYPE_CHECKING

import asyncssh

from box_guest.backpressure import Backpressure
from box_guest.wire import send_no_padding
from boxd.tunnel.channel import PACKET, WINDOW
from boxd.tunnel.limits import DIALS, Bucket, Meter, Pauses

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

logger = logging.getLogger(__name__)

BACKLOG = 8
LOGIN_S = 10.0
KEEPALIVE_S = 15
KEEPALIVE_COUNT = 3
MAX_PENDING = 4
"""Connections of one box whose key exchange is not done; an agent makes one at a time."""
USER = "daemon"
_FAULTS = (asyncssh.ProtocolError, asyncssh.MACError, asyncssh.CompressionError, ValueError)
"""How connections end whose other side broke the rules of SSH, or our limits. ValueErrors are how
asyncssh finds a message that cannot be read."""

# asyncssh logs commands and environments at INFO and DEBUG.
asyncssh.set_log_level(logging.WARNING)


class BoxListener:
    """Listens for one box. A connection counts as the box's only with the box's host key.

    `pending` and `connections` are changed by callbacks of the event loop alone.
    """

    def __init__(self, box_id: str, host_key: str, misbehaved: Callable[[str], None]) -> None:
        """`host_key` is the box's public key. `misbehaved` is told what a connection of the box
        did that none may do; the connection is over then. Raises asyncssh.KeyImportError."""
        self.box_id = box_id
        self.misbehaved = misbehaved
        self.key = asyncssh.import_public_key(host_key)
        self.pending = 0
        self.refused = 0
        """Connections with another key, or too many at once."""
        self.connections: set[asyncssh.SSHClientConnection] = set()
        """Everything that came in and is still there, tunnels included."""
        self.dials = Bucket(DIALS)
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self.listens = False
        """Whether connections may come in now."""
        self._pauses = Pauses()
        self._paused: asyncio.Task[None] | None = None
        self._listen: Callable[[], Awaitable[None]] | None = None

    async def start(
        self,
        path: Path,
        client_key: asyncssh.SSHKey,
        accepted: Callable[[asyncssh.SSHClientConnection], Awaitable[None]],
    ) -> None:
        """Makes the socket anew and listens; `accepted` gets each authenticated connection."""
        self._listen = partial(self._start, path, client_key, accepted)
        await self._listen()

    async def _start(
        self,
        path: Path,
        client_key: asyncssh.SSHKey,
        accepted: Callable[[asyncssh.SSHClientConnection], Awaitable[None]],
    ) -> None:
        listening = _bind(path)
        self.listens = True
        try:
            self._acceptor = await asyncssh.listen_reverse(
                # Without a host asyncssh fails on peers that have no address, as Unix sockets.
                self.box_id,
                22,
                sock=listening,
                backlog=BACKLOG,
                acceptor=accepted,
                client_factory=lambda: _TunnelClient(self),
                config=None,
                username=USER,
                client_keys=[client_key],
                agent_path=None,
                # Three empty lists trust no key, and have the client asked about each.
                known_hosts=([], [], []),
                server_host_key_algs=["ssh-ed25519"],
                x509_trusted_certs=None,
                preferred_auth="publickey",
                gss_kex=False,
                gss_auth=False,
                compression_algs=None,
                kex_algs=["curve25519-sha256"],
                encryption_algs=["aes128-gcm@openssh.com"],
                encoding=None,
                window=WINDOW,
                max_pktsize=PACKET,
                login_timeout=LOGIN_S,
                keepalive_interval=KEEPALIVE_S,
                keepalive_count_max=KEEPALIVE_COUNT,
            )
        except BaseException:
            self.listens = False
            listening.close()
            raise

    def pause(self) -> float | None:
        """Ends all connections and listens no more for some seconds, which are returned: longer
        each time. None: it pauses already."""
        self.abort()
        if self._paused is not None and not self._paused.done():
            return None
        seconds = self._pauses.next()
        self._paused = asyncio.create_task(self._pause(seconds))
        return seconds

    async def _pause(self, seconds: float) -> None:
        self._stop()
        await asyncio.sleep(seconds)
        try:
            if self._listen is not None:
                await self._listen()
        except OSError as error:
            logger.error("box %s: nobody listens for its agent: %s", self.box_id, error)

    async def close(self) -> None:
        """Stops listening; tunnels that are up stay."""
        if self._paused is not None:
            self._paused.cancel()
            await asyncio.gather(self._paused, return_exceptions=True)
        self._stop()

    def _stop(self) -> None:
        """The socket is closed at once. Waiting for it would wait for all tunnels that came in by
        it, since Python 3.12."""
        self.listens = False
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None

    def abort(self) -> None:
        """Ends every connection that came in here."""
        for connection in list(self.connections):
            connection.abort()


class _TunnelClient(asyncssh.SSHClient):
    """One connection to a listener until it is authenticated."""

    def __init__(self, listener: BoxListener) -> None:
        self._listener = listener
        self._pending = False
        self._known = False
        self._connection: asyncssh.SSHClientConnection | None = None

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        if not self._listener.listens:  # it was taken from the queue before the socket was closed
            conn.abort()
            return
        if not self._listener.dials.take():
            conn.abort()
            self._listener.misbehaved("too many connections in a second")
            return
        if self._listener.pending >= MAX_PENDING:
            self._listener.refused += 1
            conn.abort()
            return
        Meter(conn)
        Backpressure(conn)
        send_no_padding(conn)
        self._listener.pending += 1
        self._listener.connections.add(conn)
        self._connection = conn
        self._pending = True

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        if key == self._listener.key:
            return True
        self._listener.refused += 1
        return False

    def auth_completed(self) -> None:
        self._known = True
        self._settle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle()
        if self._connection is not None:
            self._listener.connections.discard(self._connection)
        if self._known and isinstance(exc, _FAULTS):
            self._listener.misbehaved(str(exc))

    def _settle(self) -> None:
        if self._pending:
            self._pending = False
            self._listener.pending -= 1


def _bind(path: Path) -> socket.socket:
    """A socket bound to the path; one that a former daemon left is replaced. Raises OSError."""
    path.unlink(missing_ok=True)
    # The kernel takes 107 bytes of path; through the directory's descriptor any length works.
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(f"/proc/self/fd/{directory}/{path.name}")
        path.chmod(0o600)
    except BaseException:
        bound.close()
        raise
    finally:
        os.close(directory)
    return bound
