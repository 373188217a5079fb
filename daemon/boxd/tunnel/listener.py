"""The Unix socket on which one box's agent dials in, and the checks of its connections."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import asyncssh

from box_guest.shared.backpressure import Backpressure
from box_guest.shared.wire import send_no_padding
from boxd.errors import BoxdError
from boxd.tasks import BackgroundTasks
from boxd.tunnel.channel import PACKET, WINDOW
from boxd.tunnel.limits import DIALS, Bucket, Meter, Pauses

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

BACKLOG = 8
"""Connections that may wait in the kernel."""
LOGIN_S = 10.0
"""Seconds that a connection may take to authenticate."""
KEEPALIVE_S = 15
"""Seconds between two keep-alive messages."""
KEEPALIVE_COUNT = 3
"""Unanswered keep-alive messages after which a connection counts as dead."""
MAX_PENDING = 4
"""Maximum number of connections of one box with an unfinished key exchange; an agent opens one at a
time."""
Bind: TypeAlias = "Callable[[str], Awaitable[socket.socket]]"
"""Returns a new bound socket on which a box's agent dials, by box id."""
USER = "daemon"
"""User name with which the daemon logs in."""
_FAULTS = (asyncssh.ProtocolError, asyncssh.MACError, asyncssh.CompressionError, ValueError)
"""How a connection ends if the agent violates SSH or a limit.

asyncssh raises ValueError for a message that it cannot decode.
"""

# asyncssh logs commands and environments at INFO and DEBUG.
asyncssh.set_log_level(logging.WARNING)


class BoxListener:
    """Listens for one box. A connection is accepted only with the box's host key.

    Only callbacks of the event loop change `pending` and `connections`.
    """

    def __init__(self, box_id: str, host_key: str, misbehaved: Callable[[str], None]) -> None:
        """`host_key` is the box's public key.

        `misbehaved` is called with the reason when a connection of the box violated a rule and was
        ended. Raises asyncssh.KeyImportError.
        """
        self.box_id = box_id
        self.misbehaved = misbehaved
        self.key = asyncssh.import_public_key(host_key)
        self.pending = 0
        self.refused = 0
        """Connections with another key, or too many at once."""
        self.connections: set[asyncssh.SSHClientConnection] = set()
        """All open connections, tunnels included."""
        self.dials = Bucket(DIALS)
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self.listens = False
        """Whether new connections are accepted now."""
        self._pauses = Pauses()
        self._paused = BackgroundTasks()
        self._listen: Callable[[], Awaitable[None]] | None = None

    async def start(
        self,
        bind: Bind,
        client_key: asyncssh.SSHKey,
        accepted: Callable[[asyncssh.SSHClientConnection], Awaitable[None]],
    ) -> None:
        """Listen on a new socket of `bind`; `accepted` receives each authenticated connection.

        Raises OSError, and the errors of `bind`.
        """
        self._listen = partial(self._start, bind, client_key, accepted)
        await self._listen()

    async def _start(
        self,
        bind: Bind,
        client_key: asyncssh.SSHKey,
        accepted: Callable[[asyncssh.SSHClientConnection], Awaitable[None]],
    ) -> None:
        listening = await bind(self.box_id)
        self.listens = True
        try:
            self._acceptor = await asyncssh.listen_reverse(
                # Without a host, asyncssh fails on peers without an address, such as Unix sockets.
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
                # Three empty lists trust no key, so asyncssh asks the client about each key.
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
        """End all connections and stop listening for some seconds, longer each time.

        Returns the seconds, or None if a pause is in progress.
        """
        self.abort()
        if self._paused:
            return None
        seconds = self._pauses.next()
        self._paused.start(self._pause(seconds), name=f"pause of box {self.box_id}")
        return seconds

    async def _pause(self, seconds: float) -> None:
        self._stop()
        await asyncio.sleep(seconds)
        try:
            if self._listen is not None:
                await self._listen()
        except (BoxdError, OSError) as error:
            logger.error("box %s: cannot listen for its agent: %s", self.box_id, error)

    async def close(self) -> None:
        """Stop listening; open tunnels stay."""
        await self._paused.close()
        self._stop()

    def _stop(self) -> None:
        """Close the socket without waiting.

        Since Python 3.12, waiting would last until all tunnels that arrived here have ended.
        """
        self.listens = False
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None

    def abort(self) -> None:
        """End every connection that arrived here."""
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
        if not self._listener.listens:  # it was accepted before the socket was closed
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
