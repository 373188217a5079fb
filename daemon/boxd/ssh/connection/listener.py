"""The SSH listener: it accepts the connections of users.

Protocol adapter only. Critical sections: `ListenerState.connections` changes without an await
between check and change. Each `ServerConnection` belongs to one connection; its counters change in
callbacks only.
"""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import asyncssh

from box_guest.shared.algorithms import CIPHERS, KEX, MACS, SIGNATURES
from box_guest.shared.end_of_writing import SERVER_VERSION
from boxd.clock import SystemClock
from boxd.errors import Unavailable
from boxd.ssh.connection.host_key import load_host_key
from boxd.ssh.connection.limits import ConnectionLimits
from boxd.ssh.connection.listener_state import ListenerState
from boxd.ssh.connection.server_connection import ServerConnection

if TYPE_CHECKING:
    from boxd.clock import Clock
    from boxd.config import Address
    from boxd.operations import Operations
    from boxd.ssh.connection.listener_state import ListenerSettings

LOGIN_GRACE_S = 30
"""Seconds within which a client must authenticate."""
KEEPALIVE_S = 15
"""Seconds without data after which the listener sends a client a keepalive."""
KEEPALIVES = 3
"""Unanswered keepalives after which a connection ends."""
WINDOW = 1024 * 1024
PACKET = 32 * 1024
BACKLOG = 512
DRAIN_S = 10.0
"""Seconds that open channels get to finish after the listener closes."""

_log = logging.getLogger(__name__)


class SshListener:
    """One listening port. `start` opens it; `close` ends it and every connection."""

    def __init__(
        self, operations: Operations, settings: ListenerSettings, clock: Clock | None = None
    ) -> None:
        """Load the host key, or create it. Raises Unavailable if the key cannot be used."""
        self._address = settings.address
        self._key = load_host_key(settings.keys_dir)
        clock = clock if clock is not None else SystemClock()
        self._state = ListenerState(
            operations=operations,
            settings=settings,
            clock=clock,
            limits=ConnectionLimits(clock, trusted=settings.trusted),
            fingerprint=self._key.get_fingerprint("sha256"),
            host_key=self.host_key,
        )
        self._acceptor: asyncssh.SSHAcceptor | None = None

    @property
    def port(self) -> int:
        """The port that the listener is bound to. Raises RuntimeError before `start`."""
        if self._acceptor is None:
            raise RuntimeError("the SSH listener is not open")
        return self._acceptor.get_port()

    @property
    def host_key(self) -> str:
        """The public host key, one line in OpenSSH form."""
        return self._key.export_public_key().decode().strip()

    def numbers(self) -> tuple[int, int]:
        """Return the numbers of open connections and of open channels."""
        return len(self._state.connections), self._state.channels

    async def start(self) -> None:
        """Open the port. Raises Unavailable if the address cannot be bound."""
        bound = self._state.settings.bound
        sock = bind(self._address) if bound is None else bound.dup()
        try:
            self._acceptor = await asyncssh.listen(
                sock=sock,
                backlog=BACKLOG,
                server_factory=lambda: ServerConnection(self._state),
                config=None,
                server_host_keys=[self._key],
                server_version=SERVER_VERSION,
                send_server_host_keys=False,
                kex_algs=KEX,
                encryption_algs=CIPHERS,
                mac_algs=MACS,
                signature_algs=SIGNATURES,
                compression_algs=None,
                gss_host=None,
                host_based_auth=False,
                password_auth=False,
                kbdint_auth=False,
                x11_forwarding=False,
                agent_forwarding=True,
                encoding=None,
                line_editor=False,
                allow_scp=False,
                login_timeout=LOGIN_GRACE_S,
                keepalive_interval=KEEPALIVE_S,
                keepalive_count_max=KEEPALIVES,
                window=WINDOW,
                max_pktsize=PACKET,
            )
        except OSError as error:  # another program listens on the address since it was bound
            sock.close()
            raise _refused(self._address, error) from error
        except BaseException:
            sock.close()
            raise
        _log.debug("SSH listener on %s port %d", self._address.host, self.port)

    async def close(self, drain_s: float = DRAIN_S) -> None:
        """Accept no more connections, give open channels `drain_s` seconds, then end all."""
        if self._acceptor is None:
            return
        self._acceptor.close()
        if (bound := self._state.settings.bound) is not None:
            with suppress(OSError):
                bound.shutdown(socket.SHUT_RDWR)  # other processes have the socket as well
        await self._state.drain(drain_s)
        await self._acceptor.wait_closed()
        self._acceptor = None


def bind(address: Address) -> socket.socket:
    """Return a socket that is bound, but does not listen. Raises Unavailable with the reason."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address.host, address.port))
    except OSError as error:
        sock.close()
        raise _refused(address, error) from error
    sock.setblocking(False)
    return sock


def _refused(address: Address, error: OSError) -> Unavailable:
    return Unavailable(
        f"cannot listen on {address}: {error.strerror}; choose another with --ssh-addr"
    )
