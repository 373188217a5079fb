"""Who holds leases and does not hear that they are recalled holds nobody up, and shows nothing
stale: frozen, without its listening connection, or after a restart of PostgreSQL."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import asyncpg
import pytest

from tests.harness.loop import run
from tests.harness.mounts.drive import MountProcess, until
from tests.harness.mounts.pages import reads_from_pages
from tests.harness.mounts.rooms import MountWindow, furnish
from tests.harness.mounts.visibility import Times, keep
from tests.harness.volumes.fsck import fsck_clean
from tests.harness.volumes.truth import truth_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.harness.http.httpdrive import HttpDrive
    from tests.harness.mounts.frozen import Frozen
    from tests.harness.servers.cluster import Cluster
    from tests.harness.servers.objectserver import ObjectServer
    from tests.harness.volumes.truth import Truth
    from tests.plugins.figures import Figures
    from wrkfs.config import VolumeConfig

    Windows: TypeAlias = Sequence[MountWindow]

LONGEST = 20.0
"""Seconds after which a change was held up: 7 are promised, and the machine may be busy."""
NO_TRASH = "UPDATE volume SET trash_seconds = 0"
STAT_LOOP = """
import os, sys, time
while True:
    began = time.monotonic()
    try:
        size = os.stat(sys.argv[1]).st_size
    except FileNotFoundError:
        size = -1
    print(began, size, flush=True)
    time.sleep(0.002)
"""

pytestmark = [pytest.mark.timeout(300)]


class Watch:
    """A program of its own that asks for the size of a file again and again."""

    def __init__(self, path: Path, log: Path) -> None:
        self._log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-c", STAT_LOOP, str(path)], stdout=out
            )

    def sizes(self, since: float = 0.0) -> list[int]:
        """What was answered to questions asked after `since` (monotonic)."""
        lines = self._log.read_text().splitlines(keepends=True)
        found = [line.split() for line in lines if line.endswith("\n")]
        return [int(size) for began, size in found if float(began) > since]

    def close(self) -> None:
        """Ends it, also while it waits for an answer."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(30)


@contextmanager
def watching(path: Path, log: Path) -> Iterator[Watch]:
    """A watch while the context lasts."""
    made = Watch(path, log)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def looking(rooms: Sequence[Path], name: str, truth: Truth, first: int) -> Iterator[Windows]:
    """Windows on one room, by the mounts from the `first` on, all of which have leased it."""
    sessions = truth.mounts()[first:]
    windows = [
        MountWindow(room / name, name, truth, session)
        for room, session in zip(rooms, sessions, strict=True)
    ]
    try:
        until(lambda: all(one.warm(random.Random(name)) for one in windows), 3 * LONGEST)
        yield windows
    finally:
        for one in windows:
            one.close()


def change_more(room: Path) -> None:
    """One of each kind, where nobody has to be waited for any more."""
    (room / "d/g").unlink()
    (room / "d/h").rename(room / "e/x")
    (room / "d/empty").rmdir()
    (room / "d/sub").rename(room / "d/new")
    (room / "d").chmod(0o711)


def compare(windows: Windows) -> None:
    """Looks in every way."""
    for window in windows:
        window.compare([look() for look in window.looks(random.Random(1))])


@pytest.mark.figure("RA-6")
@pytest.mark.parametrize("way", ["mount", "http"])
def test_a_frozen_holder_is_waited_for_until_it_expires_and_shows_nothing_stale(
    mount: Callable[[], MountProcess],
    http_drive: HttpDrive,
    truth: Truth,
    frozen: Frozen,
    figures: Figures,
    tmp_path: Path,
    way: str,
) -> None:
    other, holder, times = mount(), mount(), Times()

    def play(name: str) -> None:
        path = other.path / name / "d/f"
        with (
            looking([holder.path], name, truth, 1) as windows,
            watching(holder.path / name / "d/f", tmp_path / name) as watch,
        ):
            try:
                # What is open is told by then: nobody else keeps it for who stands still.
                until(lambda: windows[0].has_told("d/g"))
                until(watch.sizes)
                until(lambda: windows[0].warm(random.Random(name)))
                frozen.stop(holder)
                if way == "http":
                    times.measured("change", partial(put, http_drive, f"{name}/d/f"))
                else:
                    times.measured("change", partial(write, path))
                changed = time.monotonic()
                times.measured("more", partial(change_more, other.path / name))
                time.sleep(0.3)
            finally:
                frozen.close()
            compare(windows)
            until(lambda: watch.sizes(changed))
            assert set(watch.sizes(changed)) == {77}

    for number in figures(ci=1, long=100):
        furnish(other.path / f"r{number}", random.Random(number))
        play(f"r{number}")
    keep(f"RA-6-frozen-holder-{way}", times)
    print(times.table())
    assert max(times.by_verb["change"] + times.by_verb["more"]) < LONGEST


def put(drive: HttpDrive, path: str) -> None:
    """A change over HTTP."""
    drive.put(path, bytes(77))


def write(path: Path) -> None:
    """The same on a mount."""
    path.write_bytes(bytes(77))


@pytest.mark.promise("V5")
def test_what_a_frozen_holder_has_open_keeps_its_bytes(
    mount: Callable[[], MountProcess],
    volume: VolumeConfig,
    truth: Truth,
    frozen: Frozen,
    drive_database: str,
) -> None:
    # What is removed is freed at once: nothing but an open file keeps its bytes.
    run(execute(drive_database, f"SET search_path = {volume.schema}; {NO_TRASH}"))
    other, holder = mount(), mount()
    (other.path / "d").mkdir()
    (other.path / "d/f").write_bytes(b"kept")
    home, ino = (other.path / "d").stat().st_ino, (other.path / "d/f").stat().st_ino
    until(
        lambda: os.listdir(holder.path / "d") and truth.mounts()[1] in truth.holders(home),
        3 * LONGEST,
    )
    with (holder.path / "d/f").open("rb") as file:
        # The one that wrote it may have it open for a moment longer.
        until(lambda: truth.mounts()[1] in truth.sustainers(ino))
        try:
            frozen.stop(holder)
            (other.path / "d/f").unlink()
        finally:
            frozen.close()
        assert file.read() == b"kept"
    until(lambda: not truth.sustainers(ino))


def test_a_holder_that_stops_to_listen_shows_nothing_stale(
    mount: Callable[[], MountProcess], volume: VolumeConfig, truth: Truth, drive_database: str
) -> None:
    here, there = mount().path, mount().path
    for number in range(4):
        name = f"r{number}"
        furnish(here / name, random.Random(number))
        with looking([there], name, truth, 1) as windows:
            # One whose connection was ended listens again after a second, or later.
            until(lambda: run(listening(drive_database, volume.schema)) == 2)
            run(end_listening(drive_database, volume.schema))
            (here / name / "d/f").write_bytes(bytes(77))
            change_more(here / name)
            compare(windows)


def test_a_holder_that_cannot_listen_any_more_holds_nobody_up(
    mount: Callable[[], MountProcess], volume: VolumeConfig, truth: Truth, drive_database: str
) -> None:
    here, there = mount().path, mount().path
    furnish(here / "r", random.Random(0))
    limit = f"ALTER ROLE {volume.schema} CONNECTION LIMIT"
    with looking([there], "r", truth, 1) as windows:
        until(lambda: run(listening(drive_database, volume.schema)) == 2)
        run(execute(drive_database, f"{limit} 0"))
        try:
            run(end_listening(drive_database, volume.schema))
            began = time.monotonic()
            (here / "r/d/f").write_bytes(bytes(77))
            change_more(here / "r")
            assert time.monotonic() - began < LONGEST
        finally:
            run(execute(drive_database, f"{limit} -1"))
        compare(windows)


async def execute(dsn: str, statement: str) -> None:
    """By the superuser."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


LISTENING = "FROM pg_stat_activity WHERE usename = $1 AND query SIMILAR TO 'LISTEN %|SELECT 1'"
"""The connections that listen: the probe of a listener is its last query, too."""


async def listening(dsn: str, user: str) -> int:
    """How many listen."""
    connection = await asyncpg.connect(dsn)
    try:
        found: int = await connection.fetchval(f"SELECT count(*) {LISTENING}", user)
        return found
    finally:
        await connection.close()


async def end_listening(dsn: str, user: str) -> None:
    """Ends the connections that do."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.fetch(f"SELECT pg_terminate_backend(pid) {LISTENING}", user)
    finally:
        await connection.close()


@pytest.mark.parametrize("end", ["kill", "stop", "kill_postmaster"])
def test_after_a_restart_of_the_database_nothing_is_stale(
    cluster: Cluster,
    objectserver: ObjectServer,
    tmp_path_factory: pytest.TempPathFactory,
    end: str,
) -> None:
    volume = cluster.volume(objectserver.volume())
    mounts = []
    try:
        for _ in range(2):
            directory = tmp_path_factory.mktemp("mount")
            mounts.append(MountProcess(volume, directory))
        here, there = (one.path for one in mounts)
        with truth_of(volume) as truth:
            for number in range(2):
                name = f"r{number}"
                furnish(here / name, random.Random(number))
                os.sync()
                with looking([here, there], name, truth, 0) as windows:
                    # Durable, whatever the end is like.
                    (here / name / "d/g").chmod(0o600)
                    (here / name / "d/f").write_bytes(bytes(10))
                    getattr(cluster, end)()
                    cluster.start()
                    (here / name / "d/f").write_bytes(bytes(77))
                    change_more(here / name)
                    compare(windows)
                (there / name / "e/new").mkdir()
                assert (here / name / "e/new").is_dir()
    finally:
        for one in mounts:
            one.clean()
    fsck_clean(volume)


WRITE = """
import os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
os.pwrite(descriptor, bytes([1]) * 16384, 0)
sys.stdin.read()
os._exit(0)
"""
"""Writes, and keeps the file open until the end of its input."""


@pytest.mark.promise("V1")
def test_after_a_crash_kept_pages_are_not_those_of_a_lost_version(
    cluster: Cluster, objectserver: ObjectServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """After it another version gets the same number, and here the same time too."""
    volume = cluster.volume(objectserver.volume())
    mounts: list[MountProcess] = []
    # Read since it was changed: nothing is to be noted of it, which would need an open file.
    times = time.time_ns() + 3_600_000_000_000, 1_000_000_000
    before, lost, after = (bytes([number]) * 16384 for number in range(3))
    try:
        for _ in range(2):
            directory = tmp_path_factory.mktemp("mount")
            mounts.append(MountProcess(volume, directory))
        here, there = (one.path / "f" for one in mounts)
        here.write_bytes(before)
        until(lambda: there.read_bytes() == before)
        cluster.hold_back()
        # Not here: each process that is started from here closes it, and waits for the database.
        writer = subprocess.Popen([sys.executable, "-c", WRITE, str(here)], stdin=subprocess.PIPE)
        until(lambda: there.read_bytes() == lost)
        os.utime(here, ns=times)
        # Leased, and opened alone: its pages are kept.
        until(lambda: reads_from_pages(there, lost))
        cluster.kill()
        cluster.start()
        writer.communicate()  # told of the loss
        with here.open("r+b") as file:
            file.write(after)
        os.utime(here, ns=times)
        assert there.stat().st_mtime_ns == times[1]
        assert there.read_bytes() == after
    finally:
        for one in mounts:
            one.clean()
    fsck_clean(volume)
