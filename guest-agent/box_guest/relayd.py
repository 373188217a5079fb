"""The SSH server of a confidential box: for its owner's client alone, whoever carries the bytes.

Protocol adapter only. Each connection comes as a channel of the tunnel and stands as the session of
that channel: no port or socket exists that something in the box could take, or answer in its place.
The daemon has neither the key that it shows nor one that it takes.
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

from box_guest import forward, protocol
from box_guest.agentwish import AgentWish
from box_guest.algorithms import CIPHERS, KEX, RELAY_MACS, SAFE_SIGNATURES, SIGNATURES
from box_guest.backpressure import Backpressure
from box_guest.commandbytes import take_any_command
from box_guest.endofwriting import SERVER_VERSION, on_end_of_writing
from box_guest.environment import SESSION, filtered
from box_guest.errors import ConfigError
from box_guest.farewell import disconnect
from box_guest.sessions import BoxSession, CommandSession
from box_guest.wire import send_no_padding

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping
    from pathlib import Path

    from box_guest.sessions import ServerChannel, Services

logger = logging.getLogger(__name__)

LOGIN_S = 30.0
MAX_REJECTED = 6
"""Rejected keys of one connection, then it is closed."""
MAX_CONNECTIONS = 64
WINDOW = 1 << 20
PACKET = 32 * 1024
MAX_KEY = 16 * 1024
"""Bytes of the file of the host key."""


class Relay:
    """Makes the connections. Its host key is read, or made, when the first one comes."""

    def __init__(self, services: Services, state_dir: Path) -> None:
        """Raises ConfigError when the configuration's `relay_key` is no public key."""
        self._services = services
        self._state_dir = state_dir
        try:
            self._key = asyncssh.import_public_key(services.config.relay_key or "")
        except asyncssh.KeyImportError:
            raise ConfigError("relay_key is not a public key in OpenSSH form") from None
        self._options: asyncssh.SSHServerConnectionOptions | None = None
        self._open: set[RelayServer] = set()

    def connection(self) -> asyncssh.SSHTCPSession[bytes]:
        """A new connection. Raises ChannelOpenError when there can be none."""
        if len(self._open) >= MAX_CONNECTIONS:
            text = f"at most {MAX_CONNECTIONS} connections to a confidential box are open at once"
            raise asyncssh.ChannelOpenError(OPEN_RESOURCE_SHORTAGE, text)
        if self._options is None:
            try:
                self._options = self._made_options()
            except OSError as error:
                text = f"the box cannot keep its host key: {error.strerror}"
                raise asyncssh.ChannelOpenError(OPEN_CONNECT_FAILED, text) from None
            except Exception:
                # It would close the tunnel, and the box would not be told from a dead one.
                logger.exception("the SSH server of the box cannot be made")
                raise asyncssh.ChannelOpenError(OPEN_CONNECT_FAILED, "internal error") from None
        made = SSHServerConnection(asyncio.get_running_loop(), self._options)
        # asyncssh itself has one connection stand as the session of another's channel.
        return cast("asyncssh.SSHTCPSession[bytes]", made)

    def _made_options(self) -> asyncssh.SSHServerConnectionOptions:
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
    """One connection of the owner's client. Any user name is the user of the box."""

    def __init__(self, services: Services, key: asyncssh.SSHKey, among: set[RelayServer]) -> None:
        self._services = services
        self._key = key
        self._among = among
        self._rejected = 0
        self._connection: asyncssh.SSHServerConnection

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._among.add(self)
        Backpressure(conn)
        send_no_padding(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        self._among.discard(self)

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        if key.public_data == self._key.public_data:
            # asyncssh verifies what the key says it can: an RSA key no SHA-1 any more.
            key.all_sig_algorithms = key.all_sig_algorithms & SAFE_SIGNATURES
            return True
        self._rejected += 1
        if self._rejected >= MAX_REJECTED:
            text = "too many authentication failures"
            disconnect(self._connection, DISC_NO_MORE_AUTH_METHODS_AVAILABLE, text)
        return False

    def session_requested(self) -> tuple[ServerChannel, RelaySession]:
        chan = self._connection.create_server_channel()
        session = RelaySession(self._services)
        take_any_command(chan)
        on_end_of_writing(chan, session.output_unwanted)
        return chan, session

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> Awaitable[asyncssh.SSHTCPSession[bytes]]:
        return cast("Awaitable[asyncssh.SSHTCPSession[bytes]]", forward.dial(dest_host, dest_port))

    def unix_connection_requested(
        self, dest_path: str
    ) -> Awaitable[asyncssh.SSHUNIXSession[bytes]]:
        return cast("Awaitable[asyncssh.SSHUNIXSession[bytes]]", forward.dial_unix(dest_path))


class RelaySession(BoxSession):
    """A session of the owner's client, which nobody has looked at on its way."""

    def connection_made(self, chan: ServerChannel) -> None:
        super().connection_made(chan)
        self._agent = AgentWish(chan)

    def sent(self, chan: ServerChannel) -> Mapping[bytes, bytes]:
        env = {**filtered(chan.get_environment_bytes()), **SESSION}
        agent = self._agent.path
        return env if agent is None else {**env, b"SSH_AUTH_SOCK": os.fsencode(agent)}

    def output_unwanted(self) -> None:
        """Nobody reads the client's stdout any more."""
        if isinstance(self.handler, CommandSession):
            self.handler.output_unwanted()


def host_key(state_dir: Path, box_id: str) -> asyncssh.SSHKey:
    """The key of this box. Made where there is none; one that came with an image, or is another
    box's, is none: it says whose it is. Raises OSError."""
    path = state_dir / protocol.RELAY_HOST_KEY
    found = _read(path)
    if found is not None:
        try:
            key = asyncssh.import_private_key(found)
        except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError):
            logger.warning("%s is not a key: making another", path)
        else:
            if key.get_comment() == box_id:
                return key
    key = asyncssh.generate_private_key("ssh-ed25519", comment=box_id)
    _write(path, key.export_private_key())
    return key


def _read(path: Path) -> bytes | None:
    """A plain file of the agent's own; None: there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(handle, MAX_KEY) if stat.S_ISREG(os.fstat(handle).st_mode) else None
    finally:
        os.close(handle)


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all, and on the disk: clients remember it."""
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
