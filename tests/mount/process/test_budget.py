"""The benchmark's counting mount: what it counts is what the mount does."""

from __future__ import annotations

import os
import subprocess
from itertools import count
from typing import TYPE_CHECKING

import pytest

from benchmarks.drive.budget import Counted
from tests.harness.mounts.drive import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from wrkfs.config import VolumeConfig

FILES = 20


class Durable(Counted):
    """A counting mount that delays no change."""

    def command(self) -> Sequence[str]:
        words = list(super().command())
        return [*words[:-1], "--durable-close", words[-1]]


@pytest.fixture
def counted(volume: VolumeConfig, tmp_path: Path) -> Iterator[Counted]:
    """A mount that makes files durable when they are closed."""
    yield from _mounted(Durable(volume, tmp_path))


@pytest.fixture
def delegated(volume: VolumeConfig, tmp_path: Path) -> Iterator[Counted]:
    """A mount that takes write delegations."""
    yield from _mounted(Counted(volume, tmp_path))


def _mounted(made: Counted) -> Iterator[Counted]:
    made.mount()
    try:
        yield made
    finally:
        made.unmount()


def test_a_real_mount_is_counted(counted: Counted) -> None:
    counted.take()
    for number in range(FILES):
        (counted.path / f"f{number}").write_bytes(b"bytes")
    found = counted.take()
    for kind, name in (("fuse", "create"), ("fuse", "write"), ("database", "create")):
        assert len(found["calls"][kind][name]) == FILES, name
    assert found["calls"]["database"]["(prepare)"]
    assert found["calls"]["database"]["commit"]
    assert found["used"]["user_s"] > 0
    assert found["used"]["switches"] > 0
    (counted.path / "large").write_bytes(bytes(1 << 20))
    assert counted.take()["calls"]["objects"]["PUT"]
    counted.drop_caches()
    assert (counted.path / "large").read_bytes() == bytes(1 << 20)
    assert counted.take()["calls"]["objects"]["GET"]


QUESTIONS = {
    *("lookup", "find", "getattr", "stat", "readdir", "file_map", "open", "take_lease", "parent"),
    "read_tree",
}


def asked(counted: Counted) -> dict[str, int]:
    """Questions and changes of names and files since the last time, by statement."""
    calls = counted.take()["calls"].get("database", {})
    mine = {*QUESTIONS, "create", "make", "commit", "sync", "rename", "remove", "setattr"}
    return {name: len(times) for name, times in calls.items() if name in mine}


def read(file: Path) -> bytes:
    """All bytes; the access time, which is told in the background, stays."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOATIME)
    try:
        return os.read(descriptor, 100)
    finally:
        os.close(descriptor)


def own_work_asks(syncs: int) -> list[dict[str, int]]:
    """What writing, looking, renaming and removing ask, when so many closes come late."""
    return [
        {"create": FILES, "commit": FILES, **({"sync": syncs} if syncs else {})},
        {},
        {"rename": FILES},
        {"remove": FILES + 1},
    ]


def own_work(counted: Counted, home: Path) -> list[dict[str, int]]:
    """Does that in a new directory; what it asked."""
    found = list[dict[str, int]]()
    home.mkdir()
    counted.take()
    files = [home / f"f{number}" for number in range(FILES)]
    for file in files:
        file.write_bytes(b"bytes")
    found.append(asked(counted))
    for file in files:
        assert file.stat().st_size == len(b"bytes")
        assert read(file) == b"bytes"
    assert not (home / "absent").exists()
    found.append(asked(counted))
    for file in files:
        file.rename(file.with_suffix(".new"))
    found.append(asked(counted))
    for file in files:
        file.with_suffix(".new").unlink()
    home.rmdir()
    found.append(asked(counted))
    return found


def test_own_work_in_a_directory_asks_nothing(counted: Counted) -> None:
    names = (f"home{number}" for number in count())

    def nothing_came_late() -> bool:
        found = own_work(counted, counted.path / next(names))
        # Who stands still between a write and its close finds it committed: it comes by itself
        # then, and the close has to make it durable.
        syncs = found[0].get("sync", 0)
        assert found == own_work_asks(syncs)
        return syncs == 0

    until(nothing_came_late)


def test_empty_files_cost_one_question_each(counted: Counted) -> None:
    home = counted.path / "home"
    home.mkdir()
    counted.take()
    for number in range(FILES):
        (home / f"f{number}").touch(exist_ok=False)
    # Only the first is made durable when it is closed.
    assert asked(counted) == {"create": FILES, "sync": 1}


def test_own_work_under_a_delegation_needs_no_round_trip(delegated: Counted) -> None:
    assert own_work(delegated, delegated.path / "home") == [{}, {}, {}, {}]


def test_a_cold_walk_costs_few_questions(counted: Counted) -> None:
    project = counted.path / "project"
    for top in range(6):
        for below in range(6):
            home = project / f"top{top}" / f"below{below}"
            home.mkdir(parents=True)
            for number in range(8):
                (home / f"f{number}").write_text(f"{top} {below} {number}")
    for command, lines in ((["find", "."], 1 + 6 + 36 + 288), (["grep", "-rc", "."], 288)):
        counted.drop_caches()
        counted.take()
        found = subprocess.run(command, cwd=project, check=True, stdout=subprocess.PIPE)
        assert len(found.stdout.splitlines()) == lines
        questions = asked(counted)
        assert questions["read_tree"] >= 3
        assert sum(questions.values()) <= 30, questions
