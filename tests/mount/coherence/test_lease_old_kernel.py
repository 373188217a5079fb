"""Leases on a kernel without FUSE_NOTIFY_INC_EPOCH (before Linux 6.16): names have a time-out of 0,
nothing is stale, and what is kept is answered by the mount without the database."""

from __future__ import annotations

import os
import random
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import until
from tests.harness.mounts.rooms import HTTP_CHANGES, MountChanges, MountWindow, Rooms, warm
from tests.harness.mounts.watched_mount import WatchedMount
from tests.harness.volumes.truth import truth_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.harness.http.httpdrive import HttpDrive
    from tests.harness.volumes.truth import Truth
    from tests.plugins.figures import Figures
    from wrkfs.config import VolumeConfig

LOOKS = 50
STRIDE = 3
"""From one change to the next, so that the few rounds of CI make some of each kind."""

pytestmark = [pytest.mark.timeout(600)]


@pytest.fixture
def pair(
    volume: VolumeConfig, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[WatchedMount, WatchedMount]]:
    """Two mounts of one fresh drive whose kernels are old."""
    mounts: list[WatchedMount] = []
    try:
        for _ in range(2):
            directory = tmp_path_factory.mktemp("mount")
            mounts.append(WatchedMount(volume, directory, "--old-kernel"))
            assert mounts[-1].ask().forgets_names is False
        yield mounts[0], mounts[1]
    finally:
        for mount in mounts:
            mount.clean()


@pytest.fixture
def truth(volume: VolumeConfig) -> Iterator[Truth]:
    """A session without caches."""
    with truth_of(volume) as made:
        yield made


@pytest.mark.promise("V1")
@pytest.mark.figure("VI-1")
def test_a_mount_sees_another_mount(
    pair: tuple[WatchedMount, WatchedMount], truth: Truth, figures: Figures
) -> None:
    paths = pair[0].path, pair[1].path
    rooms, changes = Rooms(paths), MountChanges()
    verbs, sessions = changes.all(), truth.mounts()
    for number in figures(ci=16, long=10_000):
        rng = random.Random(number)
        name, maker = rooms.take()
        window = MountWindow(paths[1 - maker] / name, name, truth, sessions[1 - maker])
        try:
            warm([window], number)
            verbs[STRIDE * number % len(verbs)](paths[maker] / name, rng)
            window.compare([look() for look in window.looks(rng)])
        finally:
            window.close()
            changes.close()
    rooms.clear()


@pytest.mark.promise("V1")
@pytest.mark.figure("VI-1")
def test_a_mount_sees_http(
    pair: tuple[WatchedMount, WatchedMount], http_drive: HttpDrive, truth: Truth, figures: Figures
) -> None:
    paths = pair[0].path, pair[1].path
    rooms, sessions = Rooms(paths), truth.mounts()
    for number in figures(ci=len(HTTP_CHANGES), long=10_000):
        rng = random.Random(number)
        name, _ = rooms.take()
        windows = [
            MountWindow(path / name, name, truth, session)
            for path, session in zip(paths, sessions, strict=True)
        ]
        try:
            warm(windows, number)
            HTTP_CHANGES[number % len(HTTP_CHANGES)](http_drive.below(name), rng)
            for window in windows:
                window.compare([look() for look in window.looks(rng)])
        finally:
            for window in windows:
                window.close()
    rooms.clear()


def test_the_kernel_asks_for_every_name_each_time(pair: tuple[WatchedMount, WatchedMount]) -> None:
    mount, other = pair
    (other.path / "file").write_bytes(b"1")
    looks: list[Callable[[], object]] = [
        lambda: (mount.path / "file").stat(),
        lambda: (mount.path / "absent").exists(),
    ]
    for look in looks:
        # Leased, so that the mount would let a newer kernel rely on the name.
        until(partial(is_answered_without_a_question, mount, look))
        before = mount.ask()
        for _ in range(LOOKS):
            look()
        assert mount.ask().requests["lookup"] - before.requests["lookup"] == LOOKS
    # Also names that came with a listing.
    with os.scandir(mount.path) as entries:
        assert [entry.stat().st_size for entry in entries] == [1]
    before = mount.ask()
    for _ in range(LOOKS):
        (mount.path / "file").stat()
    assert mount.ask().requests["lookup"] - before.requests["lookup"] == LOOKS


def test_warm_looks_ask_the_database_nothing(pair: tuple[WatchedMount, WatchedMount]) -> None:
    mount, other = pair
    (other.path / "d/e").mkdir(parents=True)
    for number in range(LOOKS):
        (other.path / f"d/e/f{number}").write_bytes(b"bytes")
    folder = mount.path / "d/e"
    paths = [folder / f"f{number}" for number in range(LOOKS)]
    ways: list[Callable[[], object]] = [
        lambda: [path.stat() for path in paths],
        lambda: [path.with_suffix(".absent").exists() for path in paths],
        lambda: [path.read_bytes() for path in paths],
    ]
    for look in ways:
        until(partial(is_answered_without_a_question, mount, look))


def is_answered_without_a_question(mount: WatchedMount, look: Callable[[], object]) -> bool:
    """Whether a look costs requests of the kernel, and no round trip to the database."""
    before = mount.ask()
    look()
    after = mount.ask()
    assert after.requests.total() > before.requests.total()
    return after.questions() == before.questions()
