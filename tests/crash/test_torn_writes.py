"""CR-1: of the last writes before a kill each is there whole or not at all (D2).

Long writes that begin within pages the kernel does not hold reach the mount in two pieces each.
"""

from __future__ import annotations

import os
import random
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.harness.backends import wait_for_the_dead
from tests.harness.kill_loop import GONE
from tests.harness.ledger import Record, describe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.drive import MountProcess
    from tests.plugins.figures import Figures

WRITERS = 3
SIZE = 48_000
"""Bytes of one write."""
GAP = 3000
"""Bytes left out between two writes, at most: each begins within a new page, as a rule."""
PAUSE = 0.004
WORK = (0.15, 0.5)
"""Seconds of work before the kill: one to four commits by themselves."""


class Writer:
    """Writes on and on to a file of its own; nothing is made safe but the name."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.record = Record([b""])
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

    def verify(self) -> list[str]:
        """What the file holds, where no sequence of whole writes left it."""
        if not self.path.exists():  # not safe yet
            return []
        data = self.path.read_bytes()
        known = self.record.history
        return [] if data in known else [describe(data, Record(_nearest(known, data)))]

    def _work(self) -> None:
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            try:
                self._write(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._failed = error

    def _write(self, descriptor: int) -> None:
        os.fsync(descriptor)
        number = 0
        while True:
            number += 1
            old = self.record.latest
            at = len(old) + self._random.randrange(GAP)
            data = b"%08d" % number * (SIZE // 8)
            self.record.becomes(old.ljust(at, b"\0") + data)
            os.pwrite(descriptor, data, at)
            time.sleep(self._random.uniform(0, PAUSE))


def _nearest(history: list[bytes], data: bytes) -> list[bytes]:
    """The states around a length."""
    after = next((n for n, one in enumerate(history) if len(one) >= len(data)), len(history))
    return history[max(after - 1, 0) : after + 1]


@pytest.mark.promise("D2")
@pytest.mark.figure("CR-1")
@pytest.mark.timeout(300)
def test_each_write_is_there_whole_or_not_at_all(
    mount: Callable[[], MountProcess], figures: Figures
) -> None:
    drive = mount()
    for number in figures(ci=12, long=1000, part="torn"):
        chosen = random.Random(number)
        directory = drive.path / str(number)
        directory.mkdir()
        writers = [Writer(directory / f"w{n}", number * WRITERS + n) for n in range(WRITERS)]
        time.sleep(chosen.uniform(*WORK))
        drive.kill()
        for writer in writers:
            writer.join()
        wait_for_the_dead(drive.config)
        drive.start()
        wrong = [line for writer in writers for line in writer.verify()]
        assert not wrong, f"round {number}: {wrong}"
