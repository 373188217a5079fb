"""The SSH listener: where users come in.

Protocol adapter only. Critical sections: `FrontDoor._visitors` is changed without an await between
look and change. `Visitor` is used by one connection; its counters change in callbacks only.
"""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING

import asyncssh

from box_guest.shared.algorithms import CIPHERS, KEX, MACS, SIGNATURES
from box_guest.shared.end_of_writing import SERVER_VERSION
from boxd.clock import SystemClock
from boxd.errors import Unavailable
from boxd.ssh.cli.registry import CLI
from boxd.ssh.connection.host_key import load_host_key
from boxd.ssh.connection.limits import Limits
from boxd.ssh.connection.listener_state import Hall
from boxd.ssh.connection.server_connection import Visitor

if TYPE_CHECKING:
    from collections.abc import Container, Iterable
    from pathlib import Path

    from boxd.clock import Clock
    from boxd.config import Address
    from boxd.names.source import Network
    from boxd.operations import Operations
    from boxd.ssh.cli.command import Console

LOGIN_GRACE_S = 30
KEEPALIVE_S = 15
KEEPALIVES = 3
WINDOW = 1024 * 1024
PACKET = 32 * 1024
BACKLOG = 512
DRAIN_S = 10.0
"""What open channels get after the door has closed."""

_log = logging.getLogger(__name__)


class FrontDoor:
    """One listener. `start` opens it, `close` ends it with every connection."""

    def __init__(
        self,
        operations: Operations,
        address: Address,
        keys_dir: Path,
        clock: Clock | None = None,
        trusted: Iterable[Network] = (),
        console: Console = CLI,
        shown_as: Address | None = None,
        administrators: Container[str] = frozenset(),
        preview_domain: str | None = None,
    ) -> None:
        """Who comes from a network of `trusted` is no stranger. `console`: what user `cli` may
        type. `shown_as`: what clients are told to type; None: the address that they reached.
        `administrators`: the owners that are some, asked each time. `preview_domain`: see `Door`.
        """
        self._address = address
        self._key = load_host_key(keys_dir)
        self._clock = clock if clock is not None else SystemClock()
        limits = Limits(self._clock, trusted=trusted)
        fingerprint = self._key.get_fingerprint("sha256")
        self._hall = Hall(
            *(operations, self._clock, limits, fingerprint, self.host_key, console),
            administrators,
            shown_as,
            preview_domain,
        )
        self._acceptor: asyncssh.SSHAcceptor | None = None

    @property
    def port(self) -> int:
        """The port that is listened on."""
        if self._acceptor is None:
            raise RuntimeError("the front door is not open")
        return self._acceptor.get_port()

    @property
    def host_key(self) -> str:
        """The public host key, one line in OpenSSH form."""
        return self._key.export_public_key().decode().strip()

    async def start(self) -> None:
        """Listens. Raises Unavailable when the address cannot be had."""
        sock = _listening_socket(self._address)
        try:
            self._acceptor = await asyncssh.listen(
                sock=sock,
                backlog=BACKLOG,
                server_factory=lambda: Visitor(self._hall),
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
        except BaseException:
            sock.close()
            raise
        _log.debug("front door on %s port %d", self._address.host, self.port)

    async def close(self, drain_s: float = DRAIN_S) -> None:
        """Takes no new connection, lets open channels finish for `drain_s`, then ends them."""
        if self._acceptor is None:
            return
        self._acceptor.close()
        await self._hall.drain(drain_s)
        await self._acceptor.wait_closed()
        self._acceptor = None


def _listening_socket(address: Address) -> socket.socket:
    """Bound before asyncssh sees it, so that a taken port is told from every other failure."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address.host, address.port))
    except OSError as error:
        sock.close()
        raise Unavailable(
            f"cannot listen on {address}: {error.strerror}; choose another with --ssh-addr"
        ) from error
    sock.setblocking(False)
    return sock
