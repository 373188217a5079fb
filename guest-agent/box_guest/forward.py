"""Forwards into the box: targets are dialled from inside, sockets of forwarded agents made here;
and out of it, for the stores of a drive that the box mounts itself.

Protocol adapter only.
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
PACKET = 128 * 1024
OFFER_S = 20.0
"""A connection of the mount waits so long for a tunnel that is down."""
DIAL_S = 10.0
"""A target that does not answer in this time counts as dead."""
_SOCKET_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


async def dial(host: str, port: int) -> asyncssh.SSHForwarder:
    """Connects to a TCP target; the result pumps bytes between it and the channel.

    Raises ChannelOpenError whose reason names the target.
    """
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if not 0 < port < 65536 or not host or "\0" in host or host == protocol.RELAY_HOST:
        raise _refused(target, "no such address")
    return await _forward(target, _connect_host(host, port))


async def dial_unix(path: str) -> asyncssh.SSHForwarder:
    """Connects to a Unix socket of the box, as `dial`."""
    if not path.startswith("/") or "\0" in path:
        raise _refused(repr(path), "not an absolute path")
    return await _forward(path, _connect(socket.AF_UNIX, path))


class _End(asyncssh.SSHForwarder):
    """One end of a forward. When input has ended at both, both close after what was read."""

    def eof_received(self) -> bool:
        """Whichever end comes second closes; a socket would stay open if it came first."""
        peer = self._peer
        stays = super().eof_received()
        if not stays and peer is not None:
            self.close()
        return stays


class _Passed(_End):
    """The box's end of a connection to a store; tells when it is over.

    The far end may have had its say by the time this one is there, and be gone.
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
    """The daemon takes connections under a path; nothing listens there."""

    def __init__(self, connection: asyncssh.SSHServerConnection, path: str, ended: Ended) -> None:
        super().__init__()
        self._connection = connection
        self.path = path
        self._ended = ended

    async def pass_on(self, accepted: socket.socket, over: Callable[[], None]) -> None:
        """Connects a socket with the daemon; `over` is called when that has ended. Raises OSError
        and asyncssh.Error."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(DIAL_S):
            # First the far end: what comes from the socket needs somebody to take it.
            far = _End()
            await self._connection.create_unix_connection(
                # A forwarder stands for the session, as asyncssh itself does it.
                lambda: cast("asyncssh.SSHUNIXSession[str]", far),
                self.path,
                window=WINDOW,
                max_pktsize=PACKET,
            )
        try:
            await loop.connect_accepted_socket(lambda: _Passed(far, over), accepted)
        except BaseException:
            far.close()
            raise

    def close(self) -> None:
        self._ended(self)

    async def wait_closed(self) -> None:
        """Connections that were passed on have ends of their own."""


class DriveGate:
    """What the daemon offers to the mount of this box, as long as its tunnel is up."""

    def __init__(self) -> None:
        self._offers: dict[str, Offer] = {}
        self._news = asyncio.Event()

    def offered(self, connection: asyncssh.SSHServerConnection, path: str) -> asyncssh.SSHListener:
        """The daemon begins to take connections; a former offer is over."""
        offer = self._offers[path] = Offer(connection, path, self._ended)
        self._news.set()
        return offer

    async def pass_on(self, path: str, accepted: socket.socket, over: Callable[[], None]) -> None:
        """Connects a socket with the daemon, which is waited for while the tunnel is down. What
        fails closes the socket, and is over."""
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
    """The directory of sockets that stand for SSH agents of connected clients."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def prepare(self) -> None:
        """Makes it and removes what a former agent left there. Raises OSError."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory.chmod(0o700)
        for entry in self._directory.iterdir():
            entry.unlink()

    async def listen(
        self, connection: asyncssh.SSHServerConnection, path: str
    ) -> asyncssh.SSHListener | bool:
        """A listener at that path, connected to the client's agent; False for other places."""
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
    """A listener on a Unix socket that removes the socket's file when it is closed."""

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
        raise _refused(target, (error.strerror or "not resolved").lower()) from None
    except OSError as error:
        raise _refused(target, os.strerror(error.errno or errno.EIO).lower()) from None
    except (ValueError, OverflowError):
        # Names that cannot even be asked for, for example over-long labels.
        raise _refused(target, "no such address") from None
    _, peer = await loop.create_connection(_End, sock=connected)
    return _End(peer)


async def _connect_host(host: str, port: int) -> socket.socket:
    """Tries the addresses of a name in order; the last failure is raised."""
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
