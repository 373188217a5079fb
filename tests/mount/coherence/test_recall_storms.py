"""Two mounts that fight for the same directories: each makes progress, whatever the other does."""

from __future__ import annotations

import os
import shutil
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import MountProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.plugins.figures import Figures
    from wrkfs.config import VolumeConfig

ROUNDS = 100
"""Rounds that each program makes at least in one round of the figure."""
OVERTAKEN_MAX = 100
"""Rounds that one program may make during one round of the other."""
KEPT = 4
"""Directories that a program keeps; it removes older ones."""


class Program:
    """Changes its own directories and those of the other program, below one directory."""

    def __init__(self, home: Path, name: str) -> None:
        self.rounds = 0
        self.overtaken = 0
        """The most rounds that the other program made during one round of this one."""
        self.slowest = 0.0
        self.failure = ""
        self._home = home
        self._name = name

    def run(self, other: Program, goal: int) -> None:
        """Make rounds until both programs have reached the goal, or one has failed."""
        try:
            while min(self.rounds, other.rounds) < goal and not (self.failure or other.failure):
                before, began = other.rounds, time.monotonic()
                self._round()
                self.slowest = max(self.slowest, time.monotonic() - began)
                self.overtaken = max(self.overtaken, other.rounds - before)
                self.rounds += 1
        except OSError as error:
            self.failure = repr(error)

    def _round(self) -> None:
        """Fill a new directory, which this mount decides, then take one of the other program's."""
        own = self._home / f"{self._name}{self.rounds}"
        own.mkdir()
        for number in range(3):
            (own / f"f{number}").write_bytes(b"content")
        (own / "f0").rename(own / "moved")
        (own / "f1").unlink()
        foreign = [name for name in os.listdir(self._home) if not name.startswith(self._name)]
        # The other program may remove it.
        with suppress(FileNotFoundError):
            newest = self._home / max(foreign, default="none", key=lambda name: int(name[1:] or 0))
            os.listdir(newest)
            (newest / f"of {self._name}").write_bytes(b"a visit")
        shutil.rmtree(self._home / f"{self._name}{self.rounds - KEPT}", ignore_errors=True)


@pytest.fixture
def pair(volume: VolumeConfig, tmp_path: Path) -> Iterator[tuple[MountProcess, MountProcess]]:
    """Yield two mounts of one drive, with journals."""
    mounts: list[MountProcess] = []
    try:
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            options = ("--journal", str(tmp_path / "journals"))
            mounts.append(MountProcess(volume, tmp_path / name, *options))
        yield mounts[0], mounts[1]
    finally:
        for mount in mounts:
            mount.clean()


@pytest.mark.promise("V1")
@pytest.mark.figure("CR-13")
@pytest.mark.timeout(300)
def test_no_mount_starves(
    pair: tuple[MountProcess, MountProcess], tmp_path: Path, figures: Figures
) -> None:
    first, second = pair
    (first.path / "home").mkdir()
    programs = [Program(first.path / "home", "a"), Program(second.path / "home", "b")]
    one, other = programs
    for _ in figures(ci=1, long=10_000):
        goal = min(one.rounds, other.rounds) + ROUNDS
        thread = threading.Thread(target=other.run, args=(one, goal))
        thread.start()
        one.run(other, goal)
        thread.join()
        assert [program.failure for program in programs] == ["", ""]
        assert max(program.overtaken for program in programs) <= OVERTAKEN_MAX
    for mount in pair:
        assert "lost changes" not in mount.log.read_text()
        assert mount.stop() == 0
    assert list((tmp_path / "journals").iterdir()) == []
    for program in programs:
        print(f"{program.rounds} rounds, overtaken {program.overtaken}, {program.slowest:.2f} s")
