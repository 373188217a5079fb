"""The tunnel: dials the daemon's socket, serves SSH over the connection, and redials.

It supports only Unix sockets so far. A daemon on another host would need TCP here.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

import asyncssh

from box_guest.control import standby
from box_guest.control.randomness import reseed
from box_guest.ssh.sshd import BoxServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from box_guest.ssh.relayd import Relay
    from box_guest.ssh.sessions import Services

logger = logging.getLogger(__name__)

REDIAL_S = 0.2
"""Seconds to wait before the next dial."""
CONNECT_S = 5.0
"""Seconds that connecting may take."""
LOGIN_S = 10.0
"""Seconds that the daemon may take to log in."""
WINDOW = 512 * 1024
"""Receive window of a channel in bytes: as fast as 8 MiB over a Unix socket, with a sixteenth of
the memory that a stalled channel can hold."""
PACKET = 128 * 1024
"""Maximum size of a packet, in bytes."""
KEEPALIVE_S = 15
"""Seconds between two keep-alive messages."""
KEEPALIVE_COUNT = 3
"""Unanswered keep-alive messages after which the tunnel counts as dead."""

# asyncssh logs commands and environments at INFO and DEBUG.
asyncssh.set_log_level(logging.WARNING)


class Dialler:
    """Maintains one tunnel. The current connection is the only state across awaits."""

    def __init__(
        self,
        socket_path: Path,
        services: Services,
        relay: Relay | None,
        renewed: Callable[[], bool],
    ) -> None:
        """`relay` makes the box confidential. `renewed` is called before each dial and returns
        whether the box has become another one.

        Raises asyncssh.KeyImportError if a key of the configuration is unreadable.
        """
        self._path = socket_path
        self._renewed = renewed
        config = services.config
        self._options = asyncssh.SSHServerConnectionOptions(
            server_factory=lambda: BoxServer(services, relay),
            server_host_keys=[asyncssh.import_private_key(config.host_key)],
            authorized_client_keys=asyncssh.import_authorized_keys(config.daemon_key),
            public_key_auth=True,
            password_auth=False,
            kbdint_auth=False,
            host_based_auth=False,
            gss_host=None,
            gss_kex=False,
            gss_auth=False,
            x509_trusted_certs=None,
            agent_forwarding=False,
            x11_forwarding=False,
            compression_algs=None,
            kex_algs=["curve25519-sha256"],
            encryption_algs=["aes128-gcm@openssh.com"],
            encoding=None,
            line_editor=False,
            window=WINDOW,
            max_pktsize=PACKET,
            login_timeout=LOGIN_S,
            keepalive_interval=KEEPALIVE_S,
            keepalive_count_max=KEEPALIVE_COUNT,
        )
        self._connection: asyncssh.SSHServerConnection | None = None
        self._leaving = False

    async def run(self) -> None:
        """Dial until the box has become another one; redial REDIAL_S seconds after a tunnel ends.

        If the event loop is frozen and thawed with the box, it simply continues. So an unannounced
        freeze needs no handling here.
        """
        while not self._renewed():
            place = standby.place(self._path)
            try:
                async with asyncio.timeout(CONNECT_S + LOGIN_S):
                    self._connection = await self._dial()
            except (OSError, asyncssh.Error, TimeoutError) as error:
                logger.debug("cannot open the tunnel: %s", error)
            else:
                logger.info("the tunnel is up")
                await self._connection.wait_closed()
                logger.info("the tunnel went down")
            if self._leaving:
                self._leaving = False
                await standby.until_made_anew(self._path, place)
                # This process may run in the original box or in a copy. It cannot tell at this
                # point.
                reseed()
            else:
                await standby.pause(REDIAL_S)

    def leave(self) -> None:
        """Drop the current tunnel; `run` then waits until the daemon wants a new one."""
        self._leaving = True
        if self._connection is not None:
            # Do not close each channel: the daemon would answer into a closed socket.
            self._connection.abort()

    async def close(self) -> None:
        """Close the current tunnel; the caller must have ended `run` before."""
        if self._connection is not None:
            self._connection.close()
            await self._connection.wait_closed()

    async def _dial(self) -> asyncssh.SSHServerConnection:
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connecting.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connecting, str(self._path))
            return await asyncssh.connect_reverse(
                "daemon", 22, sock=connecting, config=None, options=self._options
            )
        except BaseException:
            connecting.close()
            raise
