"""VI-1: what one side has changed the other one sees at once, with everything cached before."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.visibility import (
    NAMES,
    Folder,
    HttpChanger,
    HttpLooker,
    MountChanger,
    MountLooker,
    Times,
    keep,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.http.httpdrive import HttpDrive
    from tests.harness.mounts.drive import MountProcess
    from tests.harness.mounts.visibility import Changer, Looker
    from tests.plugins.figures import Figures

pytestmark = [pytest.mark.promise("V1"), pytest.mark.figure("VI-1"), pytest.mark.timeout(300)]


class Pair:
    """Plays rounds: warm, change, look in every way, the first way another one each time."""

    def __init__(self, changers: list[Changer], lookers: list[Looker]) -> None:
        """One looker for each changer."""
        self._sides = list(zip(changers, lookers, strict=True))
        self._folder = Folder()
        self._last = NAMES[0]

    def round(self, seed: int) -> None:
        rng = random.Random(seed)
        changer, looker = self._sides[seed % len(self._sides)]
        look_at = NAMES if seed % 10 == 0 else (self._last,)
        # The name is drawn twice from equal generators, so that its caches are warm.
        ahead = rng.getstate()
        looker.warm(self._folder, rng.choice(NAMES))
        rng.setstate(ahead)
        self._last = changer.change(rng, self._folder)
        looks = looker.looks()
        rng.shuffle(looks)
        for look in looks:
            look(self._folder, self._last)
        for name in look_at:
            for look in looks:
                look(self._folder, name)


def test_a_mount_sees_another_mount(mount: Callable[[], MountProcess], figures: Figures) -> None:
    here, there, times = mount().path / "t", mount().path / "t", Times()
    here.mkdir()
    lookers = [MountLooker(there), MountLooker(here)]
    changers = [MountChanger(here, times), MountChanger(there, times)]
    pair = Pair([*changers], [*lookers])
    for number in figures(ci=500, long=10_000):
        pair.round(number)
    for changer, looker in zip(changers, lookers, strict=True):
        changer.let_go()
        looker.let_go()
    keep("VI-1-mount-mount", times)


def test_http_sees_a_mount(
    mount: Callable[[], MountProcess], http_drive: HttpDrive, figures: Figures
) -> None:
    path, times = mount().path / "t", Times()
    path.mkdir()
    changer = MountChanger(path, times)
    pair = Pair([changer], [HttpLooker(http_drive.below("t"))])
    for number in figures(ci=500, long=10_000):
        pair.round(number)
    changer.let_go()
    keep("VI-1-mount-HTTP", times)


def test_a_mount_sees_http(
    mount: Callable[[], MountProcess], http_drive: HttpDrive, figures: Figures
) -> None:
    path, times = mount().path / "t", Times()
    path.mkdir()
    looker = MountLooker(path)
    pair = Pair([HttpChanger(http_drive.below("t"), times)], [looker])
    for number in figures(ci=500, long=10_000):
        pair.round(number)
    looker.let_go()
    keep("VI-1-HTTP-mount", times)
