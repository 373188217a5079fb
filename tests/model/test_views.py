"""VI-2: two mounts and HTTP answer as one tree in memory does, whatever is done on which side."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, seed, settings

from tests.model.views import Play, Step, plays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.harness.http.httpdrive import HttpDrive
    from tests.harness.mounts.drive import MountProcess
    from tests.plugins.figures import Figures

BATCH = 10
"""Plays in one round."""


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory of a memory filesystem."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="model-") as name:
        yield Path(name)


@pytest.mark.promise("V1")
@pytest.mark.promise("V5")
@pytest.mark.figure("VI-2")
@pytest.mark.timeout(300)
def test_all_sides_answer_as_one_tree(
    mount: Callable[[], MountProcess], http_drive: HttpDrive, memory: Path, figures: Figures
) -> None:
    mounts = mount().path, mount().path
    length = 200 if figures.long else 50
    made = 0

    def play(steps: list[Step]) -> None:
        nonlocal made
        made += 1
        name = f"play{made}"
        for root in (mounts[0], memory):
            (root / name).mkdir()
        sides = mounts[0] / name, mounts[1] / name
        try:
            Play(sides, http_drive.below(name), memory / name).play(steps)
        finally:
            assert http_drive.delete(name)

    limits = settings(
        max_examples=BATCH,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    for number in figures(ci=100 // BATCH, long=1000 // BATCH):
        seed(number)(limits(given(plays(length))(play)))()
