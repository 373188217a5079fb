"""The tunnel: dials the daemon's socket and serves SSH over the connection, again and again.

Unix sockets only so far; a daemon on another host is dialled by TCP in the same place.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

import asyncssh

from box_guest import standby
from box_guest.randomness import reseed
from box_guest.sshd import BoxServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from box_guest.relayd import Relay
    from box_guest.sessions import Services

logger = logging.getLogger(__name__)

REDIAL_S = 0.2
CONNECT_S = 5.0
LOGIN_S = 10.0
WINDOW = 512 * 1024
"""Receive window of a channel: as fast as 8 MiB over a Unix socket, at a sixteenth of the memory
that a stalled channel can hold."""
PACKET = 128 * 1024
KEEPALIVE_S = 15
KEEPALIVE_COUNT = 3

# asyncssh logs commands and environments at INFO and DEBUG.
asyncssh.set_log_level(logging.WARNING)


class Dialler:
    """Keeps one tunnel up. The only state across awaits is the present connection."""

    def __init__(
        self,
        socket_path: Path,
        services: Services,
        relay: Relay | None,
        renewed: Callable[[], bool],
    ) -> None:
        """`relay` makes the box confidential; `renewed` says before each dial whether it has become
        another one. Raises asyncssh.KeyImportError when a key of the configuration cannot be read.
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
        """Dials until the box has become another one; after a tunnel anew after REDIAL_S.

        A loop that is frozen and thawed with the box simply goes on, so that a freeze that nobody
        announced needs no help from here.
        """
        while not self._renewed():
            place = standby.place(self._path)
            try:
                async with asyncio.timeout(CONNECT_S + LOGIN_S):
                    self._connection = await self._dial()
            except (OSError, asyncssh.Error, TimeoutError) as error:
                logger.debug("no tunnel: %s", error)
            else:
                logger.info("the tunnel is up")
                await self._connection.wait_closed()
                logger.info("the tunnel went down")
            if self._leaving:
                self._leaving = False
                await standby.until_made_anew(self._path, place)
                # Whether what goes on is the box itself or a copy of it is not known here.
                reseed()
            else:
                await standby.pause(REDIAL_S)

    def leave(self) -> None:
        """Drops the present tunnel; `run` keeps still until it is wanted again."""
        self._leaving = True
        if self._connection is not None:
            # Without a word to each channel, which the daemon would answer into a closed socket.
            self._connection.abort()

    async def close(self) -> None:
        """Closes the present tunnel; the caller has ended `run` before."""
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
