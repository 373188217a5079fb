"""The patched binding by itself: lock requests and interrupts of a minimal file system."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
import subprocess
import sys
from typing import IO, TYPE_CHECKING

import pyfuse3
import pytest

from tests.mount.errnos import errno_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    not hasattr(pyfuse3, "Interrupt"), reason="pyfuse3 from PyPI does not pass locks"
)

WAITER = """
import errno, fcntl, os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: (_ for _ in ()).throw(InterruptedError(errno.EINTR, "")))
fd = os.open(sys.argv[1], os.O_RDWR)
try:
    (fcntl.lockf if sys.argv[2] == "lockf" else fcntl.flock)(fd, fcntl.LOCK_EX)
except InterruptedError:
    sys.exit(9)
"""


class Mount:
    """The mount and what it tells."""

    def __init__(self, directory: Path, lines: IO[str]) -> None:
        self.file = directory / "file"
        self._lines = lines

    def told(self) -> str:
        """The next line."""
        return self._lines.readline().rstrip("\n")


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """The file system in a process of its own."""
    directory = tmp_path / "mnt"
    directory.mkdir()
    command = [sys.executable, "-m", "tests.harness.mounts.lock_fs", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        mounted = Mount(directory, process.stdout)
        try:
            assert mounted.told() == "ready"
            yield mounted
        finally:
            subprocess.run(["umount", str(directory)], check=True)
            process.wait(10)


def test_each_request_has_its_range_and_owner(mount: Mount) -> None:
    with mount.file.open("r+b", buffering=0) as file:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 20, 10)
        assert mount.told() == f"setlk 7 1 {fcntl.F_RDLCK} 10 20 0"
        fcntl.lockf(file, fcntl.LOCK_UN)
        assert mount.told() == f"setlk 7 1 {fcntl.F_UNLCK} 0 0 1"
        ask = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, ask))
        assert (answer[0], *answer[2:4]) == (fcntl.F_WRLCK, 5, 10)
        assert mount.told() == f"getlk 7 1 {fcntl.F_WRLCK} 0 0"
        ask = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 3, 4, 0)
        answer = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, ask))
        assert answer[0] == fcntl.F_UNLCK
        assert mount.told() == f"getlk 7 1 {fcntl.F_WRLCK} 3 4"
        ask = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 1, 2, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, ask)
        assert mount.told() == f"setlk 7 2 {fcntl.F_WRLCK} 1 2 0"
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        assert mount.told() == f"flock 7 2 {fcntl.LOCK_SH | fcntl.LOCK_NB}"
    assert mount.told() == "flush 7 1"
    assert mount.told() == "release 7 2"


def test_an_open_file_without_locks_is_released_without_an_owner(mount: Mount) -> None:
    with mount.file.open("rb", buffering=0):
        pass
    assert mount.told() == "flush 7 1"
    assert mount.told() == "release 7 False"


@pytest.mark.parametrize("kind", ["lockf", "flock"])
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGKILL])
def test_a_signal_ends_the_wait(mount: Mount, kind: str, number: signal.Signals) -> None:
    command = [sys.executable, "-c", WAITER, str(mount.file), kind]
    with subprocess.Popen(command) as waiter:
        assert mount.told().startswith(("setlk", "flock"))
        waiter.send_signal(number)
        assert mount.told() == "interrupted"
        assert waiter.wait(10) == (9 if number == signal.SIGUSR1 else -signal.SIGKILL)
    assert mount.told().startswith("flush")


def test_missing_handlers_are_fall_backs(mount: Mount) -> None:
    with mount.file.open("r+b", buffering=0) as file:
        assert errno_of(os.lseek, file.fileno(), 0, os.SEEK_DATA) == errno.ENXIO
        assert errno_of(os.posix_fallocate, file.fileno(), 0, 10) != 0
    assert errno_of(os.open, mount.file.parent, os.O_TMPFILE | os.O_RDWR) == errno.EOPNOTSUPP
