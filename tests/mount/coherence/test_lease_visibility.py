"""VI-1 with leases: what is kept of a directory is right at once after each kind of change."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.rooms import (
    HTTP_CHANGES,
    HttpWindow,
    MountChanges,
    MountWindow,
    Rooms,
    warm,
)
from tests.harness.volumes.truth import truth_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.harness.http.httpdrive import HttpDrive
    from tests.harness.mounts.drive import MountProcess
    from tests.harness.volumes.truth import Truth
    from tests.plugins.figures import Figures
    from wrkfs.config import VolumeConfig

pytestmark = [pytest.mark.figure("VI-1"), pytest.mark.timeout(600)]


@pytest.fixture
def truth(volume: VolumeConfig) -> Iterator[Truth]:
    """A session without caches."""
    with truth_of(volume) as made:
        yield made


@pytest.fixture
def pair(mount: Callable[[], MountProcess]) -> tuple[Path, Path]:
    """Two mounts of one fresh drive."""
    return mount().path, mount().path


def test_a_mount_with_leases_sees_another_mount(
    pair: tuple[Path, Path], truth: Truth, figures: Figures
) -> None:
    rooms, changes = Rooms(pair), MountChanges()
    verbs, sessions = changes.all(), truth.mounts()
    for number in figures(ci=len(verbs), long=10_000):
        rng = random.Random(number)
        name, maker = rooms.take()
        window = MountWindow(pair[1 - maker] / name, name, truth, sessions[1 - maker])
        try:
            warm([window], number)
            verbs[number % len(verbs)](pair[maker] / name, rng)
            window.compare([look() for look in window.looks(rng)])
        finally:
            window.close()
            changes.close()
    rooms.clear()


def test_a_mount_with_leases_sees_http(
    pair: tuple[Path, Path], http_drive: HttpDrive, truth: Truth, figures: Figures
) -> None:
    rooms, sessions = Rooms(pair), truth.mounts()
    for number in figures(ci=2 * len(HTTP_CHANGES), long=10_000):
        rng = random.Random(number)
        name, _ = rooms.take()
        windows = [
            MountWindow(path / name, name, truth, session)
            for path, session in zip(pair, sessions, strict=True)
        ]
        try:
            warm(windows, number)
            HTTP_CHANGES[number % len(HTTP_CHANGES)](http_drive.below(name), rng)
            for window in rng.sample(windows, 2):
                window.compare([look() for look in window.looks(rng)])
        finally:
            for window in windows:
                window.close()
    rooms.clear()


def test_http_sees_a_mount_with_leases(
    pair: tuple[Path, Path], http_drive: HttpDrive, truth: Truth, figures: Figures
) -> None:
    rooms, changes = Rooms(pair[:1]), MountChanges()
    verbs = changes.all()
    for number in figures(ci=len(verbs), long=10_000):
        rng = random.Random(number)
        name, _ = rooms.take()
        window = HttpWindow(http_drive.below(name), name, truth)
        try:
            verbs[number % len(verbs)](pair[0] / name, rng)
            window.compare([look() for look in window.looks(rng)])
        finally:
            changes.close()
    rooms.clear()
