"""Locks among the processes of one host: flock(2), fcntl(2) and open file description locks."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.mount.errnos import errno_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.plugins.figures import Figures

MOUNT_OPTIONS = ("--local-locks",)
"""The kernel keeps the locks, as in the mounts of boxes."""
LOCKER = Path(__file__).with_name("locker.py")
KINDS = ("flock", "fcntl", "ofd")
WAIT = 20.0
"""Seconds for a process to end."""


@pytest.fixture
def file(mounted_twice: tuple[Path, Path], request: pytest.FixtureRequest) -> Path:
    """An empty file of this test."""
    path = mounted_twice[0] / f"{request.node.name[:60]}"
    path.write_bytes(b"")
    return path


class Locker:
    """A process at a lock."""

    def __init__(self, *arguments: str | Path | int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", LOCKER, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def says(self) -> str:
        """Its next line; empty when it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().strip()

    def release(self) -> None:
        """Lets it release the lock and end."""
        self._process.communicate(b"\n", WAIT)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.communicate(timeout=WAIT)


@contextmanager
def locker(*arguments: str | Path | int) -> Iterator[Locker]:
    """A process at a lock that does not outlive the test."""
    made = Locker(*arguments)
    try:
        yield made
    finally:
        made.kill()


@pytest.mark.figure("RA-5")
def test_the_next_one_gets_the_lock(figures: Figures, file: Path) -> None:
    """Also when the holder is killed."""
    for number in figures(ci=20, long=1000):
        kind = KINDS[number % 3]
        with locker(kind, file) as holder:
            assert holder.says() == "held"
            with locker(kind, file) as waiter:
                assert waiter.says() == "busy"
                if number % 2:
                    holder.kill()
                else:
                    holder.release()
                assert waiter.says() == "held"


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_under_a_lock_is_what_was_written_under_it(file: Path, kind: str) -> None:
    counters = [
        subprocess.Popen([sys.executable, "-S", LOCKER, "count", kind, file, "25"])
        for _ in range(4)
    ]
    assert [counter.wait(WAIT) for counter in counters] == [0] * 4
    assert file.read_bytes() == b"100"


@pytest.mark.parametrize("kind", ["fcntl", "ofd"])
def test_ranges_are_locked_apart(file: Path, kind: str) -> None:
    with locker(kind, file, 0, 10) as low, locker(kind, file, 10, 10) as high:
        assert (low.says(), high.says()) == ("held", "held")
        with locker(kind, file, 5, 10) as both:
            assert both.says() == "busy"
            low.release()
            high.release()
            assert both.says() == "held"


def test_a_lock_tells_who_holds_it(file: Path) -> None:
    with locker("fcntl", file, 3, 4) as holder, file.open("r+b") as mine:
        assert holder.says() == "held"
        wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
        found = struct.unpack("hhqqi4x", fcntl.fcntl(mine.fileno(), fcntl.F_GETLK, wanted))
        assert found == (fcntl.F_WRLCK, 0, 3, 4, holder.pid)
        holder.release()
        found = struct.unpack("hhqqi4x", fcntl.fcntl(mine.fileno(), fcntl.F_GETLK, wanted))
        assert found[0] == fcntl.F_UNLCK


def test_shared_locks(file: Path) -> None:
    with file.open("r+b") as one, file.open("r+b") as other:
        for opened in (one, other):
            fcntl.flock(opened.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        busy = errno_of(fcntl.flock, one.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert busy == errno.EWOULDBLOCK
        fcntl.flock(other.fileno(), fcntl.LOCK_UN)
        fcntl.flock(one.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_lock_needs_the_right_access(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    assert errno_of(fcntl.lockf, descriptor, fcntl.LOCK_EX) == errno.EBADF
    fcntl.lockf(descriptor, fcntl.LOCK_SH)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.close(descriptor)


def test_flock_ends_with_the_last_descriptor_and_fcntl_with_the_first(file: Path) -> None:
    one = os.open(file, os.O_RDWR)
    copy, other = os.dup(one), os.open(file, os.O_RDWR)
    fcntl.flock(one, fcntl.LOCK_EX)
    os.close(one)
    assert errno_of(fcntl.flock, other, fcntl.LOCK_EX | fcntl.LOCK_NB) == errno.EWOULDBLOCK
    os.close(copy)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.lockf(other, fcntl.LOCK_EX)
    os.close(os.open(file, os.O_RDWR))
    with locker("fcntl", file) as now:
        assert now.says() == "held", "closing any descriptor of the file drops them, says POSIX"
    os.close(other)


def test_locks_do_not_reach_other_hosts(mounted_twice: tuple[Path, Path]) -> None:
    """A documented difference: each mount has the locks of its own kernel."""
    for path in mounted_twice:
        (path / "apart").touch()
    with (mounted_twice[0] / "apart").open("r+b") as here:
        fcntl.flock(here.fileno(), fcntl.LOCK_EX)
        with (mounted_twice[1] / "apart").open("r+b") as there:
            fcntl.flock(there.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
