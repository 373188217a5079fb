"""CR-1: of the last writes before a kill each is there whole or not at all (D2).

Long writes that begin within pages the kernel does not hold reach the mount in two pieces each.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import shutil
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import until
from tests.harness.mounts.kill_loop import GONE
from tests.harness.servers.backends import wait_for_the_dead

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.mounts.drive import MountProcess
    from tests.plugins.figures import Figures

FLAGS = (0, 0, os.O_DSYNC)
"""Of each writer's file."""
SIZE = 48_000
"""Bytes of one write."""
START = 512
"""Where a write begins within its page."""
GAP = 3000
"""Bytes left out between two writes, at most: few begin where a page does."""
PAUSE = 0.004
WORK = (0.15, 0.5)
"""Seconds of writing before the kill: one to four commits by themselves."""


class Writer:
    """Writes on and on behind the end of a file of its own."""

    def __init__(self, path: Path, flags: int, seed: int) -> None:
        self.path = path
        self.made = False
        """Whether the name is safe: it writes from then on."""
        self._flags = flags | os.O_RDWR | os.O_CREAT | os.O_EXCL
        self._places: list[int] = []
        self._safe = 0
        self._random = random.Random(seed)
        self._failed: OSError | None = None
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def join(self) -> None:
        """The mount has ended, and the writer with it."""
        self._thread.join(60)
        assert not self._thread.is_alive(), "a call hangs on a dead mount"
        assert self._failed is not None, self.path
        assert self._failed.errno in GONE, self._failed

    def verify(self) -> int:
        """How many writes are there; AssertionError where one is in part."""
        if not self.path.exists():
            assert not self.made, f"{self.path}: lost after fsync"
            return 0
        data = self.path.read_bytes()
        ends = [0, *(at + SIZE for at in self._places)]
        assert len(data) in ends, f"{self.path}: {len(data)} bytes, part of a write: {ends}"
        there = ends.index(len(data))
        wanted = b""
        for number, at in enumerate(self._places[:there]):
            wanted += bytes(at - len(wanted)) + self._bytes(number)
        assert data == wanted, f"{self.path}: other bytes than were written"
        assert there >= self._safe, f"{self.path}: {there} of {self._safe} writes that were safe"
        return there

    def _bytes(self, number: int) -> bytes:
        return b"%08d" % number * (SIZE // 8)

    def _work(self) -> None:
        try:
            descriptor = os.open(self.path, self._flags, 0o644)
            try:
                os.fsync(descriptor)
                self.made = True
                self._write(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._failed = error

    def _write(self, descriptor: int) -> None:
        end = 0
        while True:
            at = end + self._random.randrange(GAP)
            self._places.append(at)
            os.pwrite(descriptor, self._bytes(len(self._places) - 1), at)
            end = at + SIZE
            if self._flags & os.O_DSYNC:
                self._safe = len(self._places)
            time.sleep(self._random.uniform(0, PAUSE))


def all_write(writers: list[Writer]) -> bool:
    """Whether each has a name that is safe."""
    return all(writer.made for writer in writers)


@pytest.mark.promise("D2")
@pytest.mark.figure("CR-1")
@pytest.mark.timeout(300)
def test_each_write_is_there_whole_or_not_at_all(
    mount: Callable[[], MountProcess], figures: Figures
) -> None:
    drive = mount()
    there: list[int] = []
    for number in figures(ci=12, long=1000, part="torn"):
        chosen = random.Random(number)
        directory = drive.path / str(number)
        directory.mkdir()
        writers = [
            Writer(directory / f"w{n}", flags, number * len(FLAGS) + n)
            for n, flags in enumerate(FLAGS)
        ]
        until(partial(all_write, writers))
        time.sleep(chosen.uniform(*WORK))
        drive.kill()
        for writer in writers:
            writer.join()
        wait_for_the_dead(drive.config)
        drive.start()
        there.extend(writer.verify() for writer in writers)
        shutil.rmtree(directory)
    print(f"{sum(there)} writes in {len(there)} files")
    assert sum(map(bool, there)) > len(there) / 4, there


@pytest.mark.promise("D1")
@pytest.mark.parametrize("way", [0, os.O_APPEND, os.O_DIRECT])
@pytest.mark.parametrize("sync", [os.O_SYNC, os.O_DSYNC])
def test_a_synchronous_write_that_looks_like_a_piece_is_safe(
    mount: Callable[[], MountProcess], way: int, sync: int
) -> None:
    """It begins within a page and ends with one: nobody here knows that no rest follows."""
    drive = mount()
    path = drive.path / "file"
    path.write_bytes(b"a" * START)
    data = mmap.mmap(-1, mmap.PAGESIZE)  # O_DIRECT asks for memory that begins with a page
    rest = mmap.PAGESIZE - START
    data[:rest] = b"b" * rest
    descriptor = os.open(path, os.O_WRONLY | sync | way)
    try:
        with memoryview(data)[:rest] as view:
            assert os.pwrite(descriptor, view, START) == rest
        drive.kill()
    finally:
        with contextlib.suppress(OSError):  # the mount is dead
            os.close(descriptor)
        data.close()
    wait_for_the_dead(drive.config)
    drive.start()
    assert path.read_bytes() == b"a" * START + b"b" * rest
