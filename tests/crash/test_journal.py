"""The mount process, the host or PostgreSQL ends in the middle of changes that a mount decided."""

from __future__ import annotations

import random
import shutil
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import MountProcess, until
from tests.harness.mounts.step_script import StepScript
from tests.harness.servers.backends import wait_for_the_dead
from tests.harness.volumes.fsck import fsck_clean
from tests.harness.volumes.held_batches import HeldBatches

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.servers.cluster import Cluster
    from tests.harness.servers.objectserver import ObjectServer
    from tests.plugins.figures import Figures
    from wrkfs.config import VolumeConfig

LONGEST = 0.6
"""Seconds of work before the kill."""
FSCK = 10
"""Rounds between two checks of every row of the volume."""


def work_and_kill(drive: MountProcess, script: StepScript, seed: int) -> None:
    """Kill the mount at a random moment of the script."""
    script.start()
    time.sleep(random.Random(seed).uniform(0, LONGEST))
    drive.kill()
    script.join()
    wait_for_the_dead(drive.config)


def has_unsent(journals: Path) -> bool:
    """Return True if a journal has changes."""
    return any(path.stat().st_size for path in journals.glob("*-*/[0-9]*"))


def is_at_work(script: StepScript, steps: int) -> bool:
    """Return True if the script has made so many steps, or has failed."""
    return script.steps >= steps or bool(script.end)


@pytest.mark.promise("D1")
@pytest.mark.figure("CR-10")
@pytest.mark.parametrize("event", ["process", "power"])
@pytest.mark.timeout(600)
def test_what_is_left_is_a_prefix(
    volume: VolumeConfig, tmp_path: Path, figures: Figures, event: str
) -> None:
    """A killed process loses nothing that it answered.

    A journal that is gone stands for a power failure: it was written and not synced. Then at least
    what fsync covered is there. No state between two calls is shown, for example the empty file of
    a replacement.
    """
    journals = tmp_path / "journals"
    drive = MountProcess(volume, tmp_path, "--journal", str(journals))
    replayed = lost = steps = 0
    try:
        root = drive.path / "home"
        root.mkdir()
        script = StepScript(root, 7)
        for number in figures(ci=15, long=3000):
            work_and_kill(drive, script, number)
            replayed += has_unsent(journals)
            if event == "power":
                shutil.rmtree(journals)
            first = script.durable if event == "power" else script.answered
            answered = script.states[script.answered]
            steps += len(script.states)
            drive.start()
            wrong = script.verify(first)
            assert not wrong, f"round {number}: {wrong}"
            lost += script.states[0] != answered
            assert not list(journals.glob("lost-*"))
            if number % FSCK == 0:
                fsck_clean(volume)
    finally:
        drive.clean()
    assert replayed, "no kill left a journal with changes"
    print(f"{steps} states; {replayed} kills left changes, {lost} left another state")


@pytest.mark.promise("D1")
@pytest.mark.figure("CR-11")
@pytest.mark.parametrize("way", ["kill", "stop_immediately", "kill_postmaster"])
@pytest.mark.timeout(300)
def test_a_crash_of_the_database_loses_nothing(
    cluster: Cluster,
    objectserver: ObjectServer,
    tmp_path: Path,
    figures: Figures,
    way: str,
) -> None:
    """No call fails, and each answered change is there, in the mount and in the database."""
    volume = cluster.volume(objectserver.volume())
    journals = tmp_path / "journals"
    drive = MountProcess(volume, tmp_path, "--journal", str(journals))
    try:
        root = drive.path / "home"
        root.mkdir()
        script = StepScript(root, 11)
        for number in figures(ci=2, long=300):
            script.start()
            time.sleep(random.Random(number).uniform(0.1, LONGEST))
            # Each second crash comes in the middle of `apply`.
            held = HeldBatches(cluster.dsn, volume) if number % 2 else None
            if held is not None:
                with suppress(TimeoutError):  # the script may wait for a batch without changes
                    until(partial(has_unsent, journals), 2.0)
            getattr(cluster, way)()
            if held is not None:
                held.end()
            cluster.start()
            until(partial(is_at_work, script, script.steps + 20))
            script.stop()
            script.join()
            assert script.end == "", f"round {number}"
            assert script.answered == len(script.states) - 1
            assert script.verify(script.answered) == [], f"round {number}"
        last = script.states[-1]
        assert drive.stop() == 0
        assert not list(journals.iterdir()), "everything was sent"
        drive.start()
        script.states = [last]
        assert script.verify(0) == []
    finally:
        drive.clean()
    fsck_clean(volume)
