"""Forwards into the box: targets are dialled from inside, sockets of forwarded agents made here.

Protocol adapter only.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
from typing import TYPE_CHECKING

import asyncssh

from box_guest import protocol

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path
    from typing import Any

DIAL_S = 10.0
"""A target that does not answer in this time counts as dead."""
_SOCKET_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


async def dial(host: str, port: int) -> asyncssh.SSHForwarder:
    """Connects to a TCP target; the result pumps bytes between it and the channel.

    Raises ChannelOpenError whose reason names the target.
    """
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if not 0 < port < 65536 or not host or "\0" in host:
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
