"""Fixture `cluster`: a private PostgreSQL server that a test may kill, with a volume in it."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest

from boxd.embedded.postgres import EmbeddedPostgres
from boxd.embedded.process import processes_in
from tests.harness.loop import run
from tests.harness.mounts.drive import make_volume, until
from tests.harness.nursery import nursery
from wrkfs.config import StoreConfig, VolumeConfig
from wrkfs.meta.sql.migrate import install_functions

if TYPE_CHECKING:
    from collections.abc import Iterator

START_TIMEOUT = 150.0
"""Seconds; the server's own limit is shorter."""


class Cluster:
    """A private PostgreSQL server. Its methods block: beside an event loop, call them in a
    thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.dsn = ""
        """The DSN of the superuser."""
        self.start()
        run(_install(self.dsn))

    def start(self) -> None:
        """Start the server, whatever its last end was."""
        # Not by a process with files of this one: see `cluster_main`.
        with tempfile.TemporaryFile() as log:
            process = nursery("tests.harness.servers.cluster_main").start(
                [str(self._directory)], log=log.fileno(), out=subprocess.PIPE
            )
            assert process.stdout is not None
            with process.stdout as answer:
                self.dsn = answer.read().decode().strip()
            status = process.wait(START_TIMEOUT)
            log.seek(0)
            assert status == 0, log.read().decode(errors="replace")

    def kill(self) -> None:
        """Send SIGKILL to the server and all its processes, as in a power failure."""
        first = self.postmaster
        for pid in processes_in(self._data, "postgres"):
            _signal(pid, signal.SIGKILL)
        self._wait_for_end(first)

    def kill_postmaster(self) -> None:
        """Send SIGKILL only to the first process; the others notice its end."""
        self._end(signal.SIGKILL)

    def stop_immediately(self) -> None:
        """Send SIGQUIT: the next start recovers."""
        self._end(signal.SIGQUIT)

    def stop(self) -> None:
        """Stop the server fast and cleanly."""
        run(EmbeddedPostgres(self._directory).stop())

    def kill_a_backend(self, user: str) -> None:
        """Send SIGKILL to one connection of a role; the server then restarts all its processes."""
        rows = self.rows("SELECT pid FROM pg_stat_activity WHERE usename = $1 LIMIT 1", user)
        first = self._started()
        pid = rows[0][0]
        assert isinstance(pid, int)
        _signal(pid, signal.SIGKILL)
        until(lambda: self._started() not in (None, first))

    def rows(self, query: str, *args: object, schema: str = "public") -> list[tuple[object, ...]]:
        """Return the answer to a query of the superuser."""
        return run(_rows(self.dsn, query, args, schema))

    def hold_back(self) -> None:
        """Hold asynchronous commits in memory until a durable one follows: `kill` loses them."""
        # The changes of autovacuum are durable.
        self.rows("ALTER SYSTEM SET autovacuum = off")
        self.rows("SELECT pg_reload_conf()")
        until(lambda: not self._activity("autovacuum launcher", "autovacuum worker"))
        until(self._stop_writer)

    @property
    def postmaster(self) -> int:
        """Return the pid of the first process."""
        return int((self._data / "postmaster.pid").read_text().split("\n", 1)[0])

    def volume(self, store: StoreConfig) -> VolumeConfig:
        """Return a new volume whose blocks are in `store`."""
        name, password = f"v{secrets.token_hex(16)}", secrets.token_hex(16)
        run(make_volume(self.dsn, name, password))
        rest = self.dsn.rpartition("@")[2]
        return VolumeConfig(name, name, f"postgresql://{name}:{password}@{rest}", store)

    @property
    def _data(self) -> Path:
        return EmbeddedPostgres(self._directory).data

    def _started(self) -> object:
        """Return the start of the present checkpointer, or None without one."""
        try:
            return self.rows(
                "SELECT backend_start FROM pg_stat_activity WHERE backend_type = 'checkpointer'"
            )[0][0]
        except (OSError, LookupError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return None

    def _activity(self, *kinds: str) -> list[tuple[object, ...]]:
        """Return pid and wait event of each process of these kinds."""
        query = "SELECT pid, wait_event FROM pg_stat_activity WHERE backend_type = ANY ($1)"
        return self.rows(query, list(kinds))

    def _stop_writer(self) -> bool:
        """Stop the WAL writer; return whether it was idle. At work it holds locks of commits."""
        for pid, _ in self._activity("walwriter"):
            assert isinstance(pid, int)
            _signal(pid, signal.SIGSTOP)
            until(partial(_stands_still, pid))
            if (pid, "WalWriterMain") in self._activity("walwriter"):
                return True
            _signal(pid, signal.SIGCONT)
        return False

    def _end(self, number: signal.Signals) -> None:
        """Send a signal that ends the first process, and wait for the end of all."""
        # The pid file disappears with the server, so this reads the pid first.
        first = self.postmaster
        _signal(first, number)
        self._wait_for_end(first)

    def _wait_for_end(self, first: int) -> None:
        """Reap the server too: a new one would take a zombie for a running server."""
        with suppress(ChildProcessError):
            os.waitpid(first, 0)
        until(lambda: not processes_in(self._data, "postgres"))


async def _install(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await install_functions(connection)
    finally:
        await connection.close()


async def _rows(
    dsn: str, query: str, args: tuple[object, ...] = (), schema: str = "public"
) -> list[tuple[object, ...]]:
    connection = await asyncpg.connect(dsn, server_settings={"search_path": f'"{schema}"'})
    try:
        return [tuple(row) for row in await connection.fetch(query, *args)]
    finally:
        await connection.close()


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _stands_still(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Yield a server that the tests of one file may kill."""
    with tempfile.TemporaryDirectory(prefix="boxd-pg-") as name:
        made = Cluster(Path(name) / "postgres")
        try:
            yield made
        finally:
            made.stop()


@pytest.fixture
def no_store() -> StoreConfig:
    """Return the configuration of a store that no test asks."""
    return StoreConfig("", "", "", "", "", "")
