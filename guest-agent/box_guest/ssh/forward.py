"""Forwards into the box, and forwards out of it for the stores of a drive that the box mounts.

Targets are dialled from inside the box; sockets of forwarded SSH agents are created there. Protocol
adapter only.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
from typing import TYPE_CHECKING, cast

import asyncssh

from box_guest import protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path
    from typing import Any, TypeAlias

    Ended: TypeAlias = "Callable[[Offer], None]"

WINDOW = 512 * 1024
"""Receive window in bytes of a channel that the agent opens."""
PACKET = 128 * 1024
"""Maximum size of a packet, in bytes, in channels that the agent opens."""
OFFER_S = 20.0
"""Seconds for which a connection of the mount waits for a tunnel that is down."""
DIAL_S = 10.0
"""Seconds after which a target that does not answer counts as dead."""
_SOCKET_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


async def dial(host: str, port: int) -> asyncssh.SSHForwarder:
    """Connect to a TCP target; the result copies bytes between it and the channel.

    Raises ChannelOpenError, whose reason names the target.
    """
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if not 0 < port < 65536 or not host or "\0" in host or host == protocol.RELAY_HOST:
        raise _refused(target, "no such address")
    return await _forward(target, _connect_host(host, port))


async def dial_unix(path: str) -> asyncssh.SSHForwarder:
    """Connect to a Unix socket of the box; otherwise like `dial`."""
    if not path.startswith("/") or "\0" in path:
        raise _refused(repr(path), "the path is not absolute")
    return await _forward(path, _connect(socket.AF_UNIX, path))


class _End(asyncssh.SSHForwarder):
    """One end of a forward.

    When both inputs have ended, both ends close after the data is written.
    """

    def eof_received(self) -> bool:
        """Close with the second EOF; a socket would stay open if its EOF were the first."""
        peer = self._peer
        stays = super().eof_received()
        if not stays and peer is not None:
            self.close()
        return stays


class _ChannelEnd(_End):
    """The end of a forward that is a channel of the tunnel.

    A channel that closes loses an EOF that still waits behind data: here, when the data waits for
    the window; in the daemon, while a slow reader holds the channel. The daemon would then take a
    complete stream for a truncated one. So the daemon closes the channels that it opened, once both
    sides have sent EOF. Any other channel is closed only after its EOF has been sent.
    """

    def __init__(
        self, peer: asyncssh.SSHForwarder | None = None, *, opened_by_daemon: bool
    ) -> None:
        super().__init__(peer)
        self._opened_by_daemon = opened_by_daemon
        self._eof_written = False
        self._closing = False

    def write_eof(self) -> None:
        self._eof_written = True
        super().write_eof()

    def close(self) -> None:
        channel = self._transport
        if channel is None or not self._eof_written:
            super().close()
            return
        if (peer := self._peer) is not None:
            self._peer = None
            peer.close()
        if self._closing or (self._opened_by_daemon and self._eof_received):
            return
        if channel.get_write_buffer_size():
            self._closing = True
            # From now on `resume_writing` means that no data is waiting.
            channel.set_write_buffer_limits(high=0)
        else:
            super().close()

    def data_received(self, data: bytes, datatype: int | None = None) -> None:
        if not self._closing:  # the peer has closed
            super().data_received(data, datatype)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._closing:
            # The channel sends its EOF right after this call.
            asyncio.get_running_loop().call_soon(super().close)

    def connection_lost(self, exc: Exception | None) -> None:
        super().close()


class _StoreEnd(_End):
    """The box's end of a connection to a store; calls `over` when the connection has ended.

    The far end may already have received data or EOF, or have closed, before this end exists.
    """

    def __init__(self, far: asyncssh.SSHForwarder, over: Callable[[], None]) -> None:
        super().__init__()
        self._far = far
        self._over = over

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        far = self._far
        self.set_peer(far)
        far.set_peer(self)
        if far._inpbuf:
            self.write(far._inpbuf)
            far._inpbuf = b""
        if far.was_eof_received():
            self.write_eof()
        if far._transport is None:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._over()


class Offer(asyncssh.SSHListener):
    """A path under which the daemon accepts connections; nothing listens there."""

    def __init__(self, connection: asyncssh.SSHServerConnection, path: str, ended: Ended) -> None:
        super().__init__()
        self._connection = connection
        self.path = path
        self._ended = ended

    async def pass_on(self, accepted: socket.socket, over: Callable[[], None]) -> None:
        """Connect a socket to the daemon; `over` is called when the connection has ended.

        Raises OSError and asyncssh.Error.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(DIAL_S):
            # Open the far end first: data from the socket needs a receiver.
            far = _ChannelEnd(opened_by_daemon=False)
            await self._connection.create_unix_connection(
                # A forwarder acts as the session, as in asyncssh itself.
                lambda: cast("asyncssh.SSHUNIXSession[str]", far),
                self.path,
                window=WINDOW,
                max_pktsize=PACKET,
            )
        try:
            await loop.connect_accepted_socket(lambda: _StoreEnd(far, over), accepted)
        except BaseException:
            far.close()
            raise

    def close(self) -> None:
        """Withdraw the path, because the daemon or the tunnel has ended the forward."""
        self._ended(self)

    async def wait_closed(self) -> None:
        """Return at once: connections that were passed on end by themselves."""


class DriveGate:
    """The store paths that the daemon offers to the mount of this box while the tunnel is up."""

    def __init__(self) -> None:
        self._offers: dict[str, Offer] = {}
        self._news = asyncio.Event()

    def offered(self, connection: asyncssh.SSHServerConnection, path: str) -> asyncssh.SSHListener:
        """Start offering `path`; replaces an earlier offer."""
        offer = self._offers[path] = Offer(connection, path, self._ended)
        self._news.set()
        return offer

    async def pass_on(self, path: str, accepted: socket.socket, over: Callable[[], None]) -> None:
        """Connect a socket to the daemon; wait up to OFFER_S seconds while the tunnel is down.

        On failure, the socket is closed and `over` is called.
        """
        try:
            async with asyncio.timeout(OFFER_S):
                while (offer := self._offers.get(path)) is None:
                    self._news.clear()
                    await self._news.wait()
            await offer.pass_on(accepted, over)
        except (OSError, asyncssh.Error, TimeoutError):
            accepted.close()
            over()

    def _ended(self, offer: Offer) -> None:
        if self._offers.get(offer.path) is offer:
            del self._offers[offer.path]


class ForwardDir:
    """The directory of the sockets that lead to the SSH agents of connected clients."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def prepare(self) -> None:
        """Create the directory and remove files of a previous agent. Raises OSError."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory.chmod(0o700)
        for entry in self._directory.iterdir():
            entry.unlink()

    async def listen(
        self, connection: asyncssh.SSHServerConnection, path: str
    ) -> asyncssh.SSHListener | bool:
        """Create a listener at `path`, connected to the client's agent.

        Return False for other paths.
        """
        directory, _, name = path.rpartition("/")
        if directory != str(self._directory) or not _SOCKET_NAME.fullmatch(name):
            return False
        if name in (".", ".."):
            return False
        target = self._directory / name
        if target.exists():
            return False
        inner = await connection.forward_local_path(path, path)
        target.chmod(0o600)
        return _RemovedListener(inner, target)


class _RemovedListener(asyncssh.SSHListener):
    """A listener on a Unix socket that deletes the socket's file when it closes."""

    def __init__(self, inner: asyncssh.SSHListener, path: Path) -> None:
        super().__init__()
        self._inner = inner
        self._path = path

    def close(self) -> None:
        self._inner.close()
        self._path.unlink(missing_ok=True)

    async def wait_closed(self) -> None:
        await self._inner.wait_closed()


async def _forward(
    target: str, connecting: Coroutine[None, None, socket.socket]
) -> asyncssh.SSHForwarder:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(DIAL_S):
            connected = await connecting
    except TimeoutError:
        raise _refused(target, protocol.DIAL_TIMED_OUT) from None
    except socket.gaierror as error:
        raise _refused(target, (error.strerror or "the name does not resolve").lower()) from None
    except OSError as error:
        raise _refused(target, os.strerror(error.errno or errno.EIO).lower()) from None
    except (ValueError, OverflowError):
        # Names that cannot be looked up at all, for example with labels that are too long.
        raise _refused(target, "no such address") from None
    _, peer = await loop.create_connection(_End, sock=connected)
    return _ChannelEnd(peer, opened_by_daemon=True)


async def _connect_host(host: str, port: int) -> socket.socket:
    """Try the addresses of a name in order; raise the last failure."""
    loop = asyncio.get_running_loop()
    failure = OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))
    for family, _, _, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            return await _connect(family, address)
        except OSError as error:
            failure = error
    raise failure


async def _connect(family: int, address: tuple[Any, ...] | str) -> socket.socket:
    connecting = socket.socket(family, socket.SOCK_STREAM)
    try:
        connecting.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connecting, address)
    except BaseException:
        connecting.close()
        raise
    return connecting


def _refused(target: str, reason: str) -> asyncssh.ChannelOpenError:
    return asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, f"dial {target}: {reason}")
