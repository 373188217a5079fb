"""A change waits for no program that only pauses, and for no inode that the kernel has forgotten.

The mounts of these tests never take an answer for old: what the kernel has taken over of an answer,
they learn from the kernel or not at all. A change that waits for that fails after 30 s.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import until
from tests.harness.mounts.watched_mount import WatchedMount
from tests.harness.volumes.truth import truth_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.harness.volumes.truth import Truth
    from wrkfs.config import VolumeConfig

FILES = 12
BIG = 1200
"""Entries of a directory whose listing takes several requests."""

pytestmark = [pytest.mark.timeout(300), pytest.mark.promise("V1")]

CHANGES: dict[str, Callable[[Path], object]] = {
    "create": lambda directory: (directory / "new").touch(exist_ok=False),
    "unlink": lambda directory: (directory / "f1").unlink(),
    "rename": lambda directory: (directory / "f1").rename(directory / "f2"),
    "mkdir": lambda directory: (directory / "made").mkdir(),
    "rmdir": lambda directory: (directory / "sub").rmdir(),
    "chmod": lambda directory: (directory / "f1").chmod(0o611),
}


@pytest.fixture
def pair(volume: VolumeConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """Two mounts of one fresh drive, for which no answer is ever old."""
    mounts: list[WatchedMount] = []
    try:
        for _ in range(2):
            directory = tmp_path_factory.mktemp("mount")
            mounts.append(WatchedMount(volume, directory, "--ages", "3600"))
        yield [mount.path for mount in mounts]
    finally:
        for mount in mounts:
            mount.clean()


@pytest.fixture
def truth(volume: VolumeConfig) -> Iterator[Truth]:
    """A session without caches."""
    with truth_of(volume) as made:
        yield made


def filled(directory: Path, files: int) -> None:
    """A directory with files and an empty directory."""
    directory.mkdir()
    (directory / "sub").mkdir()
    for number in range(files):
        os.mknod(directory / f"f{number}")


def leased(truth: Truth, directory: Path, session: int) -> None:
    """Returns when the mount of the session has listed the directory with a lease."""
    ino = directory.stat().st_ino
    until(lambda: os.listdir(directory) and session in truth.holders(ino))


@pytest.mark.parametrize("files", [FILES, BIG])
@pytest.mark.parametrize("change", list(CHANGES))
def test_a_change_does_not_wait_for_a_listing_that_pauses(
    pair: list[Path], truth: Truth, change: str, files: int
) -> None:
    here, there = (path / "d" for path in pair)
    filled(here, files)
    leased(truth, there, truth.mounts()[1])
    with os.scandir(there) as entries:
        seen = {next(entries).name}
        CHANGES[change](here)
        # The change has returned, and the program has asked for nothing yet.
        assert {name: (there / name).exists() for name in ("new", "f1", "sub", "made")} == {
            name: (here / name).exists() for name in ("new", "f1", "sub", "made")
        }
        assert (there / "f3").stat().st_mode == (here / "f3").stat().st_mode
        seen |= {entry.name for entry in entries}
    assert {f"f{number}" for number in range(3, files)} <= seen
    assert set(os.listdir(there)) == set(os.listdir(here))


def test_a_change_does_not_wait_for_a_file_that_the_kernel_has_forgotten(
    pair: list[Path], truth: Truth
) -> None:
    """Often named, long ago and lately, and gone: no answer can bring it back."""
    here, there = (path / "d" for path in pair)
    filled(here, FILES)
    leased(truth, there, truth.mounts()[1])
    for number in range(FILES):
        path = there / f"mine{number}"
        path.touch()
        path.rename(there / "mine")
        os.listdir(there)
        (there / "mine").stat()
        (there / "mine").unlink()
        (here / f"theirs{number}").touch()
    assert set(os.listdir(there)) == set(os.listdir(here))
