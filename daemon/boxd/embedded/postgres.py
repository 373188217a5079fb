"""A private PostgreSQL server, run from the distribution's binaries.

The server runs as an unprivileged user, which may have no access to the state directory. So the
daemon opens the data and the socket directory, and the server inherits the descriptors. The server
reaches them as `/proc/self/fd/N`, which needs no access to the directories above. This method needs
no mount namespace, which would keep the mounts of boxes alive.

The server outlives the daemon. The next daemon finds it by its working directory and adopts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING

import asyncpg

from boxd.embedded.files import read_untrusted
from boxd.embedded.postgres_cluster import DISTRIBUTION, Cluster, inherited
from boxd.embedded.postgres_settings import DATABASE
from boxd.embedded.process import Process, Supervisor, processes_in, user_of
from boxd.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

START_TIMEOUT = 120.0
"""Seconds for a start, including crash recovery."""
POLL = 0.02
"""Seconds between two checks of the server's state while it starts."""
STOP_STEPS = (
    (signal.SIGINT, 60.0),  # fast: ends sessions, writes a checkpoint
    (signal.SIGQUIT, 10.0),  # immediate: recovery at the next start
    (signal.SIGKILL, 10.0),
)
BACKEND_MEMORY = 512 * 1024 * 1024
"""Bytes of private memory of one server process.

Any role may set work_mem to 64 GB. With this limit the statement fails (53200), and the machine
keeps its memory.
"""
PID_FILE_MAX = 16 * 1024
"""Maximum size of the server's postmaster.pid, in bytes. It has 8 short lines and two paths."""
TAIL = 2000
"""Length of the end of the server's output that an error quotes, in bytes."""


class EmbeddedPostgres:
    """One private server with its cluster below `directory`.

    Critical section: a lock serialises `start`, `stop` and `detach`. Between them only the
    supervisor starts processes.
    """

    def __init__(
        self,
        directory: Path,
        *,
        user: int | None = None,
        on_crash: Callable[[str], None] | None = None,
        distribution: Path = DISTRIBUTION,
    ) -> None:
        """`user` is the id that the server runs as; see `Cluster`.

        `on_crash` receives a line for the log when the server has ended by itself.
        """
        self._cluster = Cluster(directory, distribution, user)
        self._lock = asyncio.Lock()
        self._supervisor = Supervisor("PostgreSQL", self._launch, on_crash or _ignore)

    @property
    def pid(self) -> int | None:
        """Process id of the running server; None if it does not run."""
        process = self._supervisor.process
        return None if process is None else process.pid

    @property
    def data(self) -> Path:
        """The data directory."""
        return self._cluster.data

    @property
    def note(self) -> str | None:
        """A note for the operator about the path of the socket, or None."""
        cluster = self._cluster
        if cluster.client_directory == cluster.sockets:
            return None
        return (
            f"the path {cluster.sockets} is too long for a Unix socket; "
            f"the socket of PostgreSQL is in {cluster.client_directory}"
        )

    async def start(self) -> str:
        """Create the cluster if needed, start or adopt the server; return the superuser's DSN.

        Raises Unavailable with the remedy if PostgreSQL is not installed or does not start.
        """
        async with self._lock:
            if self._supervisor.process is None:
                await self._end_foreign()
                await asyncio.to_thread(self._cluster.prepare)
                process = await self._adopt() or await self._launch()
                self._supervisor.watch(process)
                await self._make_database()
            return self.dsn()

    async def stop(self) -> None:
        """Stop the server cleanly, even one that a dead daemon left running. Idempotent."""
        async with self._lock:
            process = await self._supervisor.release()
            if process is None and (pid := self._running()) is not None:
                process = _open(pid)
            await _end(process)
            # An interrupted start may have left processes, too.
            await self._end_orphans()
            self._cluster.remove_link()

    async def detach(self) -> None:
        """Stop supervising. The server keeps running and can be adopted. Idempotent."""
        async with self._lock:
            process = await self._supervisor.release()
            if process is not None:
                process.close()

    def dsn(self, database: str = DATABASE) -> str:
        """Return the connection string of the superuser, with the password."""
        return self._cluster.dsn(database)

    # -- process --

    def _running(self) -> int | None:
        """Return the pid of the postmaster of our data directory; None if it is dead."""
        pid = self._pid_file()[0]
        return int(pid) if pid.isdigit() and int(pid) in self._processes() else None

    def _processes(self) -> list[int]:
        return processes_in(self.data, "postgres") if self.data.exists() else []

    def _pid_file(self) -> list[str]:
        """Return the lines of postmaster.pid.

        The first four are pid, data directory, start time and port. The 8th is the status.
        """
        try:
            content = read_untrusted(self.data / "postmaster.pid", PID_FILE_MAX)
        except (OSError, ValueError):
            return [""]
        return content.decode("utf-8", "replace").splitlines() or [""]

    async def _end_foreign(self) -> None:
        """Stop a server of an earlier release that runs as another user than it shall."""
        pid = self._running()
        if pid is not None and user_of(pid) != self._cluster.owner()[0]:
            await _end(_open(pid))

    async def _adopt(self) -> Process | None:
        pid = self._running()
        process = None if pid is None else _open(pid)
        if process is not None:
            process.signal(signal.SIGHUP)  # the configuration may have changed
            await self._ready(process)
        return process

    async def _launch(self) -> Process:
        await self._end_orphans()
        cluster = self._cluster
        with inherited(cluster.data) as data, inherited(cluster.sockets) as sockets:
            process = Process.spawn(
                [
                    # Every process of the server inherits the limit. Shared buffers do not count.
                    "prlimit",
                    f"--data={BACKEND_MEMORY}",
                    "--",
                    str(cluster.binaries() / "postgres"),
                    f"-D/proc/self/fd/{data}",
                    f"-cunix_socket_directories=/proc/self/fd/{sockets}",
                ],
                log=cluster.directory / "log",
                sandbox=cluster.sandbox(),
                pass_fds=(data, sockets),
            )
        try:
            await self._ready(process)
        except BaseException:
            process.signal(signal.SIGQUIT)
            process.close()
            raise
        return process

    async def _ready(self, process: Process) -> None:
        """Wait until the server accepts connections. Raises Unavailable."""
        deadline = asyncio.get_running_loop().time() + START_TIMEOUT
        while asyncio.get_running_loop().time() < deadline:
            lines = self._pid_file()
            if lines[0] == str(process.pid) and len(lines) > 7 and lines[7].strip() == "ready":
                return
            if await process.wait(POLL):
                break
        problem = self._log_tail() if not process.alive else f"not ready in {START_TIMEOUT:g} s"
        raise Unavailable(f"PostgreSQL does not start: {problem}")

    def _log_tail(self) -> str:
        with (self._cluster.directory / "log").open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL))
            return file.read().decode("utf-8", "replace").strip()

    async def _end_orphans(self) -> None:
        """Kill server processes whose postmaster died, and remove their lock files.

        A new postmaster does not start beside such processes. All acknowledged changes are in the
        write-ahead log, so nothing is lost. The lock files hold the pid of the dead postmaster. If
        another process of the same user gets that pid, a new server takes it for a running one.
        Raises Unavailable.
        """
        deadline = asyncio.get_running_loop().time() + START_TIMEOUT
        while orphans := self._processes():
            for pid in orphans:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if asyncio.get_running_loop().time() > deadline:
                raise Unavailable(
                    f"processes {orphans} of a dead PostgreSQL do not end after SIGKILL; "
                    "see `dmesg` for a failing disk, or restart the machine"
                )
            await asyncio.sleep(POLL)
        for lock in (self.data / "postmaster.pid", self._cluster.socket_lock):
            lock.unlink(missing_ok=True)

    async def _make_database(self) -> None:
        connection = await asyncpg.connect(self.dsn("postgres"))
        try:
            query = "SELECT 1 FROM pg_database WHERE datname = $1"
            if await connection.fetchval(query, DATABASE) is None:
                await connection.execute(f"CREATE DATABASE {DATABASE} TEMPLATE template0")
            for name in (DATABASE, "postgres", "template1"):
                await connection.execute(f"REVOKE ALL ON DATABASE {name} FROM PUBLIC")
        finally:
            await connection.close()


def _open(pid: int) -> Process | None:
    """Return the process, or None if it has ended meanwhile."""
    try:
        return Process(pid)
    except ProcessLookupError:
        return None


async def _end(process: Process | None) -> None:
    if process is not None:
        try:
            await process.end(STOP_STEPS)
        finally:
            process.close()


def _ignore(line: str) -> None:
    """Discard a line of a server without `on_crash`."""
