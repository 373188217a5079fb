"""The SSH server of a confidential box: it serves the owner's client, end to end encrypted.

Protocol adapter only. Each connection arrives as a channel of the tunnel and acts as the session of
that channel. No port or socket exists that a process in the box could take over or answer on. The
daemon has neither the server's host key nor a key that the server accepts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from typing import TYPE_CHECKING, cast

import asyncssh
from asyncssh.connection import SSHServerConnection
from asyncssh.constants import (
    DISC_NO_MORE_AUTH_METHODS_AVAILABLE,
    OPEN_CONNECT_FAILED,
    OPEN_RESOURCE_SHORTAGE,
)

from box_guest import protocol
from box_guest.errors import ConfigError
from box_guest.shared.agent_request import AgentRequest
from box_guest.shared.algorithms import CIPHERS, KEX, RELAY_MACS, SAFE_SIGNATURES, SIGNATURES
from box_guest.shared.backpressure import Backpressure
from box_guest.shared.command_bytes import take_any_command
from box_guest.shared.end_of_writing import SERVER_VERSION, on_end_of_writing
from box_guest.shared.environment import SESSION, filtered
from box_guest.shared.farewell import disconnect
from box_guest.shared.wire import send_no_padding
from box_guest.ssh import forward
from box_guest.ssh.sessions import BoxSession, CommandSession

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping
    from pathlib import Path

    from box_guest.ssh.sessions import ServerChannel, Services

logger = logging.getLogger(__name__)

LOGIN_S = 30.0
"""Seconds that a client may take to log in."""
MAX_REJECTED = 6
"""Rejected keys after which a connection is closed."""
MAX_CONNECTIONS = 64
"""Maximum number of concurrent connections of one box."""
WINDOW = 1 << 20
"""Receive window of a channel in bytes."""
PACKET = 32 * 1024
"""Maximum size of a packet, in bytes."""
MAX_KEY = 16 * 1024
"""Maximum size of the host key file, in bytes."""


class Relay:
    """Creates the connections; reads or creates its host key for the first one."""

    def __init__(self, services: Services, state_dir: Path) -> None:
        """Raises ConfigError if the configuration's `relay_key` is not a public key."""
        self._services = services
        self._state_dir = state_dir
        try:
            self._key = asyncssh.import_public_key(services.config.relay_key or "")
        except asyncssh.KeyImportError:
            raise ConfigError("'relay_key' is not a public key in OpenSSH format") from None
        self._options: asyncssh.SSHServerConnectionOptions | None = None
        self._open: set[RelayServer] = set()

    def connection(self) -> asyncssh.SSHTCPSession[bytes]:
        """Return a new connection.

        Raises ChannelOpenError if the limit is reached or there is no host key.
        """
        if len(self._open) >= MAX_CONNECTIONS:
            text = f"a confidential box allows at most {MAX_CONNECTIONS} connections at once"
            raise asyncssh.ChannelOpenError(OPEN_RESOURCE_SHORTAGE, text)
        if self._options is None:
            try:
                self._options = self._build_options()
            except OSError as error:
                text = f"the box cannot store its host key: {error.strerror}"
                raise asyncssh.ChannelOpenError(OPEN_CONNECT_FAILED, text) from None
            except Exception:
                # An exception would close the tunnel, and the box would look dead.
                logger.exception("cannot set up the SSH server of the box")
                raise asyncssh.ChannelOpenError(OPEN_CONNECT_FAILED, "internal error") from None
        connection = SSHServerConnection(asyncio.get_running_loop(), self._options)
        # asyncssh itself uses a connection as the session of another connection's channel.
        return cast("asyncssh.SSHTCPSession[bytes]", connection)

    def _build_options(self) -> asyncssh.SSHServerConnectionOptions:
        return asyncssh.SSHServerConnectionOptions(
            server_factory=lambda: RelayServer(self._services, self._key, self._open),
            server_host_keys=[host_key(self._state_dir, self._services.config.box_id)],
            server_version=SERVER_VERSION,
            send_server_host_keys=False,
            kex_algs=KEX,
            encryption_algs=CIPHERS,
            mac_algs=RELAY_MACS,
            signature_algs=SIGNATURES,
            compression_algs=None,
            gss_host=None,
            gss_kex=False,
            gss_auth=False,
            host_based_auth=False,
            password_auth=False,
            kbdint_auth=False,
            x509_trusted_certs=None,
            x11_forwarding=False,
            agent_forwarding=True,
            encoding=None,
            line_editor=False,
            allow_scp=False,
            login_timeout=LOGIN_S,
            window=WINDOW,
            max_pktsize=PACKET,
        )


class RelayServer(asyncssh.SSHServer):
    """One connection of the owner's client. Every user name means the user of the box."""

    def __init__(
        self, services: Services, key: asyncssh.SSHKey, connections: set[RelayServer]
    ) -> None:
        self._services = services
        self._key = key
        self._among = connections
        self._rejected = 0
        self._connection: asyncssh.SSHServerConnection

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        """Register the connection and set its back-pressure."""
        self._connection = conn
        self._among.add(self)
        Backpressure(conn)
        send_no_padding(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister the connection."""
        self._among.discard(self)

    def begin_auth(self, username: str) -> bool:
        """Require authentication for every user name."""
        return True

    def public_key_auth_supported(self) -> bool:
        """Offer public key authentication, the only method."""
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Accept the owner's key only; disconnect after MAX_REJECTED other keys."""
        if key.public_data == self._key.public_data:
            # asyncssh accepts every algorithm that the key lists: remove SHA-1 from an RSA key.
            key.all_sig_algorithms = key.all_sig_algorithms & SAFE_SIGNATURES
            return True
        self._rejected += 1
        if self._rejected >= MAX_REJECTED:
            text = "too many authentication failures"
            disconnect(self._connection, DISC_NO_MORE_AUTH_METHODS_AVAILABLE, text)
        return False

    def session_requested(self) -> tuple[ServerChannel, RelaySession]:
        """Open a session channel; the session decides what it runs."""
        chan = self._connection.create_server_channel()
        session = RelaySession(self._services)
        take_any_command(chan)
        on_end_of_writing(chan, session.output_unwanted)
        return chan, session

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> Awaitable[asyncssh.SSHTCPSession[bytes]]:
        """Dial a TCP target inside the box. Raises ChannelOpenError."""
        return cast("Awaitable[asyncssh.SSHTCPSession[bytes]]", forward.dial(dest_host, dest_port))

    def unix_connection_requested(
        self, dest_path: str
    ) -> Awaitable[asyncssh.SSHUNIXSession[bytes]]:
        """Dial a Unix socket inside the box. Raises ChannelOpenError."""
        return cast("Awaitable[asyncssh.SSHUNIXSession[bytes]]", forward.dial_unix(dest_path))


class RelaySession(BoxSession):
    """A session of the owner's client, which the daemon cannot read."""

    def connection_made(self, chan: ServerChannel) -> None:
        """Note the channel and its request for the client's SSH agent."""
        super().connection_made(chan)
        self._agent = AgentRequest(chan)

    def sent(self, chan: ServerChannel) -> Mapping[bytes, bytes]:
        """Return the client's variables, filtered, and those that describe the session."""
        env = {**filtered(chan.get_environment_bytes()), **SESSION}
        agent = self._agent.path
        return env if agent is None else {**env, b"SSH_AUTH_SOCK": os.fsencode(agent)}

    def output_unwanted(self) -> None:
        """Note that the reader of the client's stdout has exited."""
        if isinstance(self.handler, CommandSession):
            self.handler.output_unwanted()


def host_key(state_dir: Path, box_id: str) -> asyncssh.SSHKey:
    """Return the host key of this box, or create one. Raises OSError.

    The key's comment names its box. A key that came with an image, or that belongs to another box,
    is replaced.
    """
    path = state_dir / protocol.RELAY_HOST_KEY
    content = _read(path)
    if content is not None:
        try:
            key = asyncssh.import_private_key(content)
        except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError):
            logger.warning("%s is not a key; creating a new one", path)
        else:
            if key.get_comment() == box_id:
                return key
    key = asyncssh.generate_private_key("ssh-ed25519", comment=box_id)
    _write(path, key.export_private_key())
    return key


def _read(path: Path) -> bytes | None:
    """Return the content of one of the agent's own files; None if it is not a regular file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(handle, MAX_KEY) if stat.S_ISREG(os.fstat(handle).st_mode) else None
    finally:
        os.close(handle)


def _write(path: Path, data: bytes) -> None:
    """Write the file atomically and durably: clients remember the key."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
