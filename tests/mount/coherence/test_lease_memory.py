"""PX-5 with leases: what a mount keeps stays within its bound, and what it shows stays right."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.harness.memory import resident
from tests.harness.mounts.watched_mount import WatchedMount
from wrkfs.meta.leases.lease_table import ROOM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.harness.mounts.drive import MountProcess
    from tests.plugins.figures import Figures
    from wrkfs.config import VolumeConfig

SMALL_ROOM = 1000
DIRECTORIES, FILES, LARGE = 20, 200, 1000
LISTED, WALKED = 2, 3
"""What an entry weighs: name and attributes; and that they were told to the kernel. The bound is
kept up to one directory."""
MANY, CROWD = 110, 2000
"""Directories of the long figure, and files in each: 220,000 names."""
FEW = 4
"""The same in CI."""
BYTES_PER_NAME = 1400
"""Of memory, with attributes of its file, and that they were told; *measured* 924."""
SPARE = 16 << 20
"""Bytes of answers under way, and the allocator's slack."""

pytestmark = [pytest.mark.timeout(300)]


@pytest.fixture
def watched(
    volume: VolumeConfig, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., WatchedMount]]:
    """Makes mounts that can be looked into."""
    mounts: list[WatchedMount] = []

    def make(*options: str) -> WatchedMount:
        directory = tmp_path_factory.mktemp("watched")
        mounts.append(WatchedMount(volume, directory, *options))
        return mounts[-1]

    try:
        yield make
    finally:
        for made in mounts:
            made.clean()


def test_a_walk_of_more_names_than_may_be_kept_stays_bounded_and_right(
    watched: Callable[..., WatchedMount], mount: Callable[[], MountProcess]
) -> None:
    drive, other = watched("--room", str(SMALL_ROOM)), mount()
    tree = Tree(other.path)
    for number in range(DIRECTORIES):
        tree.make(f"d{number}", FILES)
    for turn in range(2):
        for number in range(0, DIRECTORIES, 1 + 3 * turn):
            rng = random.Random(f"{turn} {number}")
            here, before = f"d{number}", f"d{rng.randrange(DIRECTORIES)}"
            look_at_all(drive.path / here, tree.files[here])
            # One of the two changes both; what was evicted and what is kept.
            tree.root = rng.choice((other.path, drive.path))
            for folder in (here, before):
                changed = tree.change(folder, rng)
                look_at(drive.path / folder, tree.files[folder], changed)
                look_at(other.path / folder, tree.files[folder], changed)
            told = drive.ask()
            assert told.most <= SMALL_ROOM + WALKED * (FILES + DIRECTORIES)
            assert told.homes <= told.kept
    for name, files in tree.files.items():
        look_at(drive.path / name, files, sorted(files)[:10])


def test_names_that_are_asked_for_one_by_one_stay_bounded(
    watched: Callable[..., WatchedMount], mount: Callable[[], MountProcess]
) -> None:
    drive, other = watched("--room", str(SMALL_ROOM)), mount()
    tree = Tree(other.path)
    tree.make("d", LARGE)
    for name, data in tree.files["d"].items():
        assert (drive.path / "d" / name).stat().st_size == len(data)
    told = drive.ask()
    assert told.most <= SMALL_ROOM + LISTED
    assert not told.requests["readdir"]


def test_a_directory_of_more_names_than_may_be_kept_is_right(
    watched: Callable[..., WatchedMount], mount: Callable[[], MountProcess]
) -> None:
    drive, other = watched("--room", str(SMALL_ROOM)), mount()
    tree = Tree(other.path)
    tree.make("d", LARGE)
    look_at_all(drive.path / "d", tree.files["d"])
    for number in range(10):
        tree.root = (other.path, drive.path)[number % 2]
        changed = tree.change("d", random.Random(number))
        look_at(drive.path / "d", tree.files["d"], changed)
        look_at(other.path / "d", tree.files["d"], changed)
    look_at_all(drive.path / "d", tree.files["d"])
    assert drive.ask().most <= SMALL_ROOM + LISTED * LARGE


class Tree:
    """Directories of small files, changed through `root`, and what must be in them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: dict[str, dict[str, bytes]] = {}
        self._changes = 0

    def make(self, name: str, count: int) -> None:
        """A directory of so many files."""
        (self.root / name).mkdir()
        files = {f"f{number}": f"{name} {number}".encode() for number in range(count)}
        for file, data in files.items():
            (self.root / name / file).write_bytes(data)
        self.files[name] = files

    def change(self, name: str, rng: random.Random) -> list[str]:
        """Writes, makes, moves and removes a file each; the names that show it."""
        self._changes += 1
        folder, files = self.root / name, self.files[name]
        written, moved, removed = rng.sample(sorted(files), 3)
        made, to = f"m{self._changes}", f"r{self._changes}"
        files[written] = rng.randbytes(rng.choice((10, 5000)))
        (folder / written).write_bytes(files[written])
        files[made] = rng.randbytes(100)
        (folder / made).write_bytes(files[made])
        files[to] = files.pop(moved)
        (folder / moved).rename(folder / to)
        del files[removed]
        (folder / removed).unlink()
        return [written, made, moved, to, removed]


def look_at_all(folder: Path, files: dict[str, bytes]) -> None:
    """Lists a directory, asks for all attributes, and reads some of the files."""
    with os.scandir(folder) as entries:
        sizes = {entry.name: entry.stat().st_size for entry in entries}
    assert sizes == {name: len(data) for name, data in files.items()}
    look_at(folder, files, sorted(files)[::10])
    for name, data in files.items():
        assert (folder / name).stat().st_size == len(data)


def look_at(folder: Path, files: dict[str, bytes], names: list[str]) -> None:
    """Reads files that must be there, and asks for names that must not."""
    for name in names:
        if name in files:
            assert (folder / name).stat().st_size == len(files[name])
            assert (folder / name).read_bytes() == files[name]
        else:
            assert not (folder / name).exists()


@pytest.mark.figure("PX-5")
def test_memory_is_bounded_while_many_names_are_walked(
    watched: Callable[..., WatchedMount], mount: Callable[[], MountProcess], figures: Figures
) -> None:
    count = MANY if figures.long else FEW
    other, folders = mount(), list[str]()
    for number in figures(ci=1, long=5):
        if not folders:
            folders = [crowd(other.path / f"d{one}") for one in range(count)]
        drive = watched()
        walk(drive.path / folders[0])
        before = resident(drive.pid, "VmRSS")
        for folder in random.Random(number).sample(folders, len(folders)):
            walk(drive.path / folder)
            assert drive.ask().kept <= ROOM + LISTED * CROWD
        told = drive.ask()
        grown = resident(drive.pid, "VmRSS") - before
        print(f"{told.names} names, {told.kept} in all, {grown >> 20} MiB: {grown // told.names}")
        assert grown <= BYTES_PER_NAME * told.names + SPARE
        drive.stop()


def crowd(folder: Path) -> str:
    """A directory of many files; its name."""
    folder.mkdir()
    for number in range(CROWD):
        os.mknod(folder / f"a-file-with-a-name-of-usual-length-{number}")
    return folder.name


def walk(folder: Path) -> None:
    """Asks for all attributes twice: as listed, and by name."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.stat().st_size == 0]
    assert len(names) == CROWD
    for name in names:
        (folder / name).stat()
