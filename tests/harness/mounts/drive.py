"""Fixtures `volume` and `mount`: a volume on real stores, and real FUSE mounts of it."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

import asyncpg
import pytest

from box_guest.fuse import tuning
from box_guest.mount import mountpoint as mounting
from tests.harness.loop import run
from tests.harness.nursery import nursery
from tests.harness.volumes.fsck import fsck_clean
from wrkfs.config import VolumeConfig
from wrkfs.meta.sql.migrate import create_volume_schema, install_functions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.harness.nursery import Started
    from tests.harness.servers.objectserver import ObjectServer

START_TIMEOUT = 60.0
STOP_TIMEOUT = 30.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--no-leases`: the mounts of the run cache nothing that others may change."""
    parser.addoption("--no-leases", action="store_true", help="mount without leases in all tests")


def pytest_configure(config: pytest.Config) -> None:
    """Apply the option to all mounts of the run."""
    if config.getoption("--no-leases"):
        MountProcess.ALWAYS = ("--no-leases",)


class MountProcess:
    """A mount process of a test."""

    PROGRAM: ClassVar[str] = "box_guest.mount"

    LOADED: ClassVar[bool] = True
    """Whether a start forks the loaded program; if not, each start loads it in a new process."""

    ALWAYS: ClassVar[tuple[str, ...]] = ()
    """Options of every mount of this run."""

    def __init__(self, config: VolumeConfig, directory: Path, *options: str) -> None:
        self.config = config
        self._options = (*self.ALWAYS, *options)
        self.path = directory / "mnt"
        self.log = directory / "log"
        self._process: Started | subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def pid(self) -> int:
        """Return the pid of the process that serves the mount."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Mount; replaces a mount whose process was killed."""
        reader, writer = os.pipe()
        arguments = ["--credentials-fd", str(reader), *self._options, str(self.path)]
        with self.log.open("ab") as log:
            if self.LOADED:
                self._process = nursery(self.PROGRAM).start(
                    arguments, log=log.fileno(), out=subprocess.PIPE, pass_fds=(reader,)
                )
            else:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", self.PROGRAM, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    pass_fds=(reader,),
                )
        os.close(reader)
        os.write(writer, self.config.to_json().encode())
        os.close(writer)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line == b"ready\n", self.log.read_text(errors="replace")

    def kill(self) -> None:
        """Send SIGKILL. The dead mountpoint remains."""
        assert self._process is not None
        self._process.kill()
        self._reap()

    def stop(self) -> int:
        """Send SIGTERM: the process commits and unmounts. Return its exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._reap()

    def wait(self) -> int:
        """Wait for the process to end; return its exit status."""
        return self._reap()

    def clean(self) -> None:
        """End the process and remove the mount, whatever their states are."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._reap()
        for _ in range(16):
            if tuning.device(self.path) is None:
                return
            mounting.unmount(self.path, lazy=True)

    def _reap(self) -> int:
        assert self._process is not None
        status = self._process.wait(STOP_TIMEOUT)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return status


@pytest.fixture(scope="session")
def drive_database(pg: str) -> Iterator[str]:
    """Yield the superuser's DSN of a database with the drive's functions."""
    name = f"drive_{secrets.token_hex(8)}"
    run(make_database(pg, name))
    try:
        yield pg.replace("@/boxd?", f"@/{name}?")
    finally:
        run(_execute(pg, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
def volume(
    drive_database: str, objectserver: ObjectServer, request: pytest.FixtureRequest
) -> Iterator[VolumeConfig]:
    """Yield a new volume with its own role, schema and object prefix.

    At the end of the test the volume must pass `fsck`, unless the test is marked `unclean`.
    """
    with fresh_volume(drive_database, objectserver) as config:
        yield config
        if request.node.get_closest_marker("unclean") is None:
            fsck_clean(config)


@contextmanager
def fresh_volume(drive_database: str, objectserver: ObjectServer) -> Iterator[VolumeConfig]:
    """Yield a volume like fixture `volume`, for fixtures of a wider scope."""
    name = f"v{secrets.token_hex(16)}"
    password = secrets.token_hex(16)
    run(make_volume(drive_database, name, password))
    user, _, rest = drive_database.removeprefix("postgresql://").partition("@")
    assert user
    try:
        yield VolumeConfig(
            volume=name,
            schema=name,
            meta_dsn=f"postgresql://{name}:{password}@{rest}",
            store=objectserver.volume(),
        )
    finally:
        run(_drop_volume(drive_database, name))


@pytest.fixture
def mount(
    volume: VolumeConfig, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], MountProcess]]:
    """Yield a function that mounts `volume`; each call starts another mount process."""
    mounts: list[MountProcess] = []

    def make() -> MountProcess:
        directory = tmp_path_factory.mktemp("mount")
        mounts.append(MountProcess(volume, directory))
        return mounts[-1]

    try:
        yield make
    finally:
        for made in mounts:
            made.clean()


@pytest.fixture
def no_trash(drive_database: str, volume: VolumeConfig) -> None:
    """Set the trash time of `volume` to zero, so that removed and closed inodes are freed at
    once."""
    keep_trash(drive_database, volume, 0)


def keep_trash(database: str, volume: VolumeConfig, seconds: int) -> None:
    """Set how long removed files remain, as the daemon does; 0 frees them at once."""
    run(_execute(database, f'UPDATE "{volume.schema}".volume SET trash_seconds = {seconds}'))  # noqa: S608 own names


def send_changes(path: Path) -> None:
    """Send all changes of a mount to the database. What exists only until then never gets there."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def until(condition: Callable[[], object], deadline: float = 30.0) -> None:
    """Return when `condition()` is true; raise TimeoutError after `deadline` seconds."""
    end = time.monotonic() + deadline
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.005)


async def make_database(dsn: str, name: str) -> None:
    """Create a database with the drive's functions."""
    await _execute(dsn, f"CREATE DATABASE {name} TEMPLATE template0")
    connection = await asyncpg.connect(dsn.replace("@/boxd?", f"@/{name}?"))
    try:
        await install_functions(connection)
    finally:
        await connection.close()


async def make_volume(dsn: str, name: str, password: str) -> None:
    """Create a volume's role and schema, which have the same name."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
        database = await connection.fetchval("SELECT current_database()")
        await connection.execute(f'GRANT CONNECT ON DATABASE "{database}" TO {name}')
        await create_volume_schema(connection, name, name)
    finally:
        await connection.close()


async def _drop_volume(dsn: str, name: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"DROP SCHEMA {name} CASCADE")
        await connection.execute(f"DROP OWNED BY {name}")
        await connection.execute(f"DROP ROLE {name}")
    finally:
        await connection.close()


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
