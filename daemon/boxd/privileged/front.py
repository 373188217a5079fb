"""The process that strangers reach: SSH, HTTP, MCP and the database, without any right.

It starts as root, reads the operator's files, waits for the servers, and enters its sandbox before
it listens. A front that dies is started again; boxes, mounts and servers keep running meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from boxd.errors import BadRequest, Unavailable
from boxd.images.versions import make_visible
from boxd.privileged import calls
from boxd.privileged.client import Client
from boxd.privileged.interface import Servers
from boxd.privileged.processes import end_with_parent
from boxd.privileged.remote import RemoteHost
from boxd.sandbox import enter
from boxd.sandbox.sandbox import Sandbox
from boxd.workspaces.credentials import StoreTarget
from boxd.workspaces.mount_process import files_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from boxd.config import Config

OF_ROOT = {"passfile", "sslcert", "sslkey"}
"""Parameters of a connection string that name files with secrets."""
KEPT = frozenset(
    [
        "ALL_PROXY",
        "COLORTERM",
        "COLUMNS",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "LANG",
        "NO_COLOR",
        "NO_PROXY",
        "PATH",
        "TERM",
        "TZ",
    ]
)
"""Variables of the environment that a front keeps, in capitals."""
LOST = 75
"""Exit status of a front whose helper has ended."""


@dataclass(frozen=True, slots=True)
class Connection:
    """The connection of a front to the helper, on which no call is in progress."""

    socket: socket.socket
    servers: Servers
    user: int
    """The id of the front's user."""


def let_go_of_terminal() -> None:
    """Give up what this process inherited from the operator's shell, except its output.

    A process that strangers have taken over could read what is typed, and the environment.
    """
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    if os.isatty(2):
        output = os.open("/proc/self/fd/2", os.O_WRONLY | os.O_NOCTTY)
        os.dup2(output, 2)
        os.close(output)
    for name in [*os.environ]:
        if name.upper() not in KEPT and not name.startswith("LC_"):
            del os.environ[name]


async def start_servers(sock: socket.socket, progress: Callable[[str], None]) -> Connection:
    """Let the helper start the servers; return the connection.

    Raises Unavailable or BadRequest with a remedy. SIGINT and SIGTERM raise CancelledError.
    """
    client = Client(sock.dup(), on_step=progress, on_lost=end_at_once)
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    if task is None:
        raise RuntimeError("there is no task to cancel")
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        answer = await client.ask(calls.StartServers(), calls.ServersStarted)
    finally:
        client.close()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    objects = (
        None
        if answer.endpoint is None
        else StoreTarget(answer.endpoint, answer.bucket, answer.region)
    )
    return Connection(sock, Servers(answer.dsn, objects), answer.user)


def enter_sandbox(config: Config, connection: Connection) -> None:
    """Give up all rights for ever. Call it without other threads. Raises OSError, Unavailable."""
    state = config.state_dir
    _require_reachable(connection.servers.dsn)
    own = (state / "keys", state / "grants")
    for directory in own:
        give(directory, connection.user)
    readable = (*_images(state / "images"), *files_of(connection.servers.dsn))
    enter.enter(Sandbox(connection.user, "front", readable, own).document())
    end_with_parent()  # the change of the user has cancelled it
    # Asyncssh asks for both, and the user has no entry in /etc/passwd.
    os.environ.update(LOGNAME="boxd", HOME="/")


def _require_reachable(dsn: str) -> None:
    """Raise BadRequest if a connection string names files that only root can read."""
    names = sorted(parse_qs(urlsplit(dsn).query).keys() & OF_ROOT)
    if names:
        raise BadRequest(
            f"--meta-dsn: {names[0]} names a file, and the part of the service that connects has "
            "no access to files; use a password in the connection string instead"
        )


def _images(directory: Path) -> Iterator[Path]:
    """Yield the directory of images, and roots that an operator has linked from elsewhere."""
    directory.mkdir(mode=0o755, exist_ok=True)
    yield directory
    for image in directory.iterdir():
        if image.is_dir():
            make_visible(image)
            root = (image / "rootfs").resolve()
            if not root.is_relative_to(directory.resolve()):
                yield root


def connect(config: Config, connection: Connection, progress: Callable[[str], None]) -> RemoteHost:
    """Return the host of a front, in the running event loop. The process ends with the helper."""
    client = Client(connection.socket, on_step=progress, on_lost=end_at_once)
    return RemoteHost(client, connection.servers, config.state_dir)


def end_at_once() -> None:
    """End this process: without the helper it can do nothing, and another front takes over."""
    os._exit(LOST)


def give(directory: Path, user: int) -> None:
    """Give a directory and its files to a user; create it if needed.

    Raises Unavailable for a file that is none or has several names, because the new owner could
    reach another file through it.
    """
    directory.mkdir(mode=0o700, exist_ok=True)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(directory, flags)
    except OSError as error:
        raise Unavailable(f"{directory}: {error.strerror}; make it a directory") from error
    try:
        if os.fstat(descriptor).st_mode & 0o077:
            raise Unavailable(f"{directory} is open to others; run: chmod 700 {directory}")
        for name in os.listdir(descriptor):
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                raise Unavailable(
                    f"{directory / name} is not a file with a single name; "
                    "replace it by a copy of the file"
                )
            os.chown(name, user, user, dir_fd=descriptor, follow_symlinks=False)
        os.fchown(descriptor, user, user)
    finally:
        os.close(descriptor)
