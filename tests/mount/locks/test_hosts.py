"""Two hosts and one of them in trouble: locks, and SQLite on them."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.database import GIVES_WAY_S, make, rows, start
from tests.harness.mounts.lockers import Locker

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.mounts.drive import MountProcess


def acknowledged(writer: subprocess.Popen[str], least: int) -> int:
    """Read the first acknowledgements of a writer; return their number."""
    assert writer.stdout is not None
    count = 0
    while count < least and writer.stdout.readline():
        count += 1
    return count


def rest(writer: subprocess.Popen[str]) -> int:
    """Return the number of acknowledgements that were not read before a writer ended."""
    assert writer.stdout is not None
    count = len(writer.stdout.read().split())
    writer.stdout.close()
    writer.wait(60)
    return count


@pytest.mark.parametrize("mode", ["delete", "truncate", "persist"])
def test_sqlite_writes_from_two_hosts(mounted_twice: tuple[Path, Path], mode: str) -> None:
    path = mounted_twice[0] / f"{mode}.db"
    make(path, mode)
    writers = [
        start(mount / path.name, f"{number} {mode}", 15)
        for number, mount in enumerate(mounted_twice * 2)
    ]
    for writer in writers:
        assert rest(writer) == 15
        assert writer.returncode == 0
    for mount in mounted_twice:
        assert rows(mount / path.name) == 60


def test_a_killed_writer_leaves_a_sound_database(mounted_twice: tuple[Path, Path]) -> None:
    """The other host rolls its journal back."""
    path = mounted_twice[0] / "killed.db"
    make(path, "delete")
    least = 0
    for number in range(6):
        steady = start(mounted_twice[number % 2] / path.name, f"s{number}", 5)
        victim = start(mounted_twice[1 - number % 2] / path.name, f"v{number}", 10_000)
        least += acknowledged(victim, 1 + number % 3)
        victim.send_signal(signal.SIGKILL)
        least += rest(victim) + rest(steady)
        assert steady.returncode == 0
        found = rows(mounted_twice[number % 2] / path.name)
        assert least <= found <= least + 1, "the last one may have been committed and not told"
        least = found


@pytest.mark.promise("V7")
def test_a_killed_mount_leaves_a_sound_database(mount: Callable[[], MountProcess]) -> None:
    """Its locks end when its session has expired."""
    steady, doomed = mount(), mount()
    path = steady.path / "file.db"
    make(path, "delete")
    total = 0
    for number in range(2):
        writers = [
            start(place.path / path.name, f"{number} {place is doomed}", 10_000, GIVES_WAY_S)
            for place in (doomed, steady)
        ]
        counts = [acknowledged(writer, 5) for writer in writers]
        before = rows(path)
        doomed.kill()
        counts[0] += rest(writers[0])
        # The other host continues, as soon as the locks of the dead one have ended.
        counts[1] += acknowledged(writers[1], 5 + 100)
        writers[1].send_signal(signal.SIGKILL)
        counts[1] += rest(writers[1])
        found = rows(path)
        assert found >= before
        least = total + sum(counts)
        assert least <= found <= least + 2, "each last one may have been committed and not told"
        total = found
        doomed.clean()
        doomed.start()


@pytest.mark.promise("V7")
def test_a_frozen_host_cannot_write_after_it_lost_its_lock(
    mount: Callable[[], MountProcess],
) -> None:
    frozen, awake = mount(), mount()
    here, there = Locker(frozen.path / "f"), Locker(awake.path / "f")
    try:
        assert here("set", "f", "write", 0, 0) == "done"
        assert here("pwrite", "f", 0, "first") == "5"
        assert here("fsync", "f") == "done"
        assert here("pwrite", "f", 0, "loser") == "5"
        os.kill(frozen.pid, signal.SIGSTOP)
        assert there("wait", "f", "write", 0, 0) == "done"
        assert there("pread", "f", 0, 5) in ("first", "loser")
        assert there("pwrite", "f", 0, "owner") == "5"
        assert there("fsync", "f") == "done"
        os.kill(frozen.pid, signal.SIGCONT)
        here("pwrite", "f", 0, "again")
        assert here("fsync", "f") == "ENOLCK"
        assert here("pwrite", "f", 0, "never") == "ENOLCK"
        assert here("set", "f", "write", 0, 0) == "ENOLCK"
        assert there("pread", "f", 0, 5) == "owner"
        assert here("open", "g", frozen.path / "f") == "done"
        assert here("pread", "g", 0, 5) == "owner"
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
        here.kill()
        there.kill()


def test_the_locks_of_a_mount_that_stops_are_free_at_once(
    mount: Callable[[], MountProcess],
) -> None:
    stopped, other = mount(), mount()
    here, there = Locker(stopped.path / "f"), Locker(other.path / "f")
    try:
        assert here("set", "f", "write", 0, 0) == "done"
        here.kill()
        stopped.stop()
        assert there("set", "f", "write", 0, 0) == "done"
    finally:
        here.kill()
        there.kill()
