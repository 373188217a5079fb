"""The files of the embedded PostgreSQL cluster: binaries, initdb, configuration, socket directory.

The calls block, so `boxd.embedded.postgres` makes them in a thread.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from boxd.embedded.files import read_untrusted, sync_directory, write_private
from boxd.embedded.postgres_settings import SUPERUSER, configuration, host_based_access
from boxd.errors import Unavailable
from boxd.sandbox.sandbox import Sandbox
from boxd.sandbox.users import hand_over
from boxd.secret import random_hex

if TYPE_CHECKING:
    from collections.abc import Iterator

DISTRIBUTION = Path("/usr/lib/postgresql")
"""Debian's directory of `<version>/bin`."""
SYSTEM_USERS = ("postgres", "boxd-postgres")
"""Accounts for PostgreSQL if the daemon is root. The first one that exists is used."""
SOCKET_NAME = ".s.PGSQL.5432"
SOCKET_PATH_MAX = 107
"""Maximum length of a Unix socket's path on Linux, in bytes."""
SHORT_PARENT = Path("/run")
"""The directory of the short link to a socket directory whose path is too long."""
INITDB_TIMEOUT = 120.0
VERSION_MAX = 16
"""Maximum size of the file with the version of a cluster, in bytes."""


class Cluster:
    """Paths and files of one cluster below `directory`: `data/`, `socket/`, `password`, `log`.

    `user` is the id that the server runs as, and owns its files. Without it, that is the owner of
    an existing data directory. A new one then gets the account of the distribution, which other
    servers of the host may use as well.
    """

    def __init__(
        self, directory: Path, distribution: Path = DISTRIBUTION, user: int | None = None
    ) -> None:
        self.directory = directory.absolute()
        self._user = user
        self.data = self.directory / "data"
        self.sockets = self.directory / "socket"
        self._password_file = self.directory / "password"
        self._distribution = distribution

    @property
    def client_directory(self) -> Path:
        """The directory for clients: `socket/`, or a short link to it if its path is too long."""
        if len(os.fsencode(self.sockets / SOCKET_NAME)) <= SOCKET_PATH_MAX:
            return self.sockets
        status = self.directory.stat()
        return SHORT_PARENT / f"boxd-postgres-{status.st_dev:x}-{status.st_ino:x}"

    @property
    def socket_lock(self) -> Path:
        """The lock file with which a server claims the socket."""
        return self.sockets / f"{SOCKET_NAME}.lock"

    def dsn(self, database: str) -> str:
        """Return the connection string of the superuser, with the password. Raises OSError."""
        password = self._password_file.read_text(encoding="ascii")
        host = quote(str(self.client_directory), safe="")
        return f"postgresql://{SUPERUSER}:{password}@/{database}?host={host}"

    def binaries(self) -> Path:
        """Return the directory of the programs.

        An existing cluster needs its own version; a new one gets the newest. Raises Unavailable
        with the package to install.
        """
        version = self._version()
        if version is not None:
            programs = self._distribution / version / "bin"
            if not (programs / "postgres").exists():
                raise Unavailable(
                    f"{self.data} was created by PostgreSQL {version}, which is not installed; "
                    f"run: apt-get install postgresql-{version}"
                )
            return programs
        versions = [
            path.parent
            for path in self._distribution.glob("*/bin/initdb")
            if path.parent.parent.name.isdigit()
        ]
        if not versions:
            raise Unavailable(
                f"no PostgreSQL server in {self._distribution}; run: apt-get install postgresql"
            )
        return max(versions, key=lambda path: int(path.parent.name))

    def _version(self) -> str | None:
        """Return the major version of an existing cluster. Raises Unavailable.

        The data directory belongs to the server, so its files may be anything.
        """
        file = self.data / "PG_VERSION"
        try:
            text = read_untrusted(file, VERSION_MAX).decode("ascii").strip()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise Unavailable(f"{file} cannot be read: {error}; restore it from a backup") from None
        if not text.isdecimal():
            raise Unavailable(f"{file} has no version; restore it from a backup")
        return text

    def prepare(self) -> None:
        """Create the data directory, the configuration and the socket directory. Idempotent.

        Raises OSError, or Unavailable with the remedy.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = self.owner()
        if not self.data.exists():
            self._initialise(owner)
        elif not self._password_file.exists():
            raise Unavailable(f"{self._password_file} is missing; restore it from a backup")
        elif os.geteuid() == 0:
            hand_over(self.data, *owner)
        for name, text in (
            ("postgresql.conf", configuration()),
            ("pg_hba.conf", host_based_access()),
        ):
            _write(self.data / name, text.encode("utf-8"), owner)
        self._make_socket_directory(owner)

    def owner(self) -> tuple[int, int]:
        """Return the ids of the server's user and group. Raises Unavailable."""
        if self._user is not None:
            return self._user, self._user
        with contextlib.suppress(FileNotFoundError):
            status = self.data.stat()
            return status.st_uid, status.st_gid
        entry = account()
        return entry.pw_uid, entry.pw_gid

    def _initialise(self, owner: tuple[int, int]) -> None:
        """Run initdb in `data.new`, and rename the directory when it is complete.

        initdb runs as the account of the distribution, because its user needs a name.
        """
        user = account()
        new = self.directory / "data.new"
        if new.exists():
            shutil.rmtree(new)
        new.mkdir(mode=0o700)
        os.chown(new, user.pw_uid, user.pw_gid)
        password = random_hex(32)
        write_private(self._password_file, password.encode("ascii"))
        with inherited(new) as data, _memory_file(password) as secret:
            command = [
                str(self.binaries() / "initdb"),
                f"--pgdata=/proc/self/fd/{data}",
                f"--pwfile=/proc/self/fd/{secret}",
                f"--username={SUPERUSER}",
                "--auth=scram-sha-256",
                "--data-checksums",
                "--encoding=UTF8",
                "--locale=C",
                "--no-instructions",
            ]
            process = self._run(command, user, (data, secret))
        if process.returncode != 0:
            output = process.stdout.decode("utf-8", "replace").strip()
            raise Unavailable(f"PostgreSQL's initdb failed: {output}")
        if os.geteuid() == 0:
            hand_over(new, *owner)
        new.rename(self.data)
        sync_directory(self.directory)

    def _run(
        self, command: list[str], user: pwd.struct_passwd, descriptors: tuple[int, ...]
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a program in the server's sandbox, with its output in one stream."""
        with contextlib.ExitStack() as stack:
            sandbox = self._sandbox((user.pw_uid, user.pw_gid))
            if sandbox is not None:
                command, document = stack.enter_context(sandbox.command(command))
                descriptors = (*descriptors, document)
            return subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd="/",
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
                umask=0o077,
                pass_fds=descriptors,
                timeout=INITDB_TIMEOUT,
                check=False,
            )

    def sandbox(self) -> Sandbox | None:
        """Return the sandbox of the server; None if the daemon is not root.

        The server reaches its data and its sockets through descriptors that it inherits.
        """
        return self._sandbox(self.owner())

    def _sandbox(self, owner: tuple[int, int]) -> Sandbox | None:
        if os.geteuid() != 0:
            return None
        user, group = owner
        return Sandbox(user, "postgres", (self.binaries(),), group=group, network=False)

    def _make_socket_directory(self, owner: tuple[int, int]) -> None:
        self.sockets.mkdir(mode=0o700, exist_ok=True)
        os.chown(self.sockets, *owner)
        # Mount processes have other users. For everybody else, a parent directory is closed.
        self.sockets.chmod(0o711)
        for socket in self.sockets.glob(".s.PGSQL.*[0-9]"):
            _open_to_all(socket)  # of a server that an earlier release started
        link = self.client_directory
        if link == self.sockets:
            return
        if os.geteuid() != 0:
            raise Unavailable(
                f"the path {self.sockets} is too long for a Unix socket ({SOCKET_PATH_MAX} bytes); "
                "choose a --state-dir with a shorter path"
            )
        if not link.is_symlink() or link.readlink() != self.sockets:
            link.unlink(missing_ok=True)
            link.symlink_to(self.sockets)

    def remove_link(self) -> None:
        """Remove the short link to the socket directory, if it exists."""
        if self.directory.exists() and self.client_directory != self.sockets:
            self.client_directory.unlink(missing_ok=True)


def account() -> pwd.struct_passwd:
    """Return the account for PostgreSQL: the distribution's if the daemon is root, else its own.

    Raises Unavailable if no such system user exists.
    """
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    for name in SYSTEM_USERS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise Unavailable(
        f"no system user {' or '.join(SYSTEM_USERS)} to run PostgreSQL; run: "
        f"adduser --system --group --no-create-home {SYSTEM_USERS[-1]}"
    )


def _write(path: Path, content: bytes, owner: tuple[int, int]) -> None:
    """Write a file of the server, unless it has this content. Whatever is there is replaced."""
    with contextlib.suppress(OSError, ValueError):
        if read_untrusted(path, len(content)) == content:
            return
    write_private(path, content, owner=owner)


def _open_to_all(socket: Path) -> None:
    """Let all users connect to a socket. Does nothing to other files, which the server may plant.

    Raises OSError.
    """
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(socket, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                Path("/proc/self/fd", str(descriptor)).chmod(0o777)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def inherited(directory: Path) -> Iterator[int]:
    """Yield a descriptor of a directory for a child, which uses it as `/proc/self/fd/N`."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _memory_file(text: str) -> Iterator[int]:
    """Yield a descriptor of a file in memory. A child can open it again."""
    descriptor = os.memfd_create("boxd", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, text.encode("ascii"))
        yield descriptor
    finally:
        os.close(descriptor)
