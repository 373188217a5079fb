"""CR-1: the mount process is killed while programs write; what was acknowledged is there."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.kill_loop import Writer
from tests.harness.servers.backends import wait_for_the_dead
from tests.harness.volumes.fsck import fsck_clean

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.mounts.drive import MountProcess
    from tests.plugins.figures import Figures

WRITERS = 3
LONGEST = 0.3
"""Seconds of work before the kill."""
FSCK = 20
"""Rounds between two looks at every row of the volume; the fixture has the last one."""
HIT = 0.004
"""Seconds between the beginning of a close or fsync and the kill that is aimed at it."""


@pytest.mark.promise("D1")
@pytest.mark.promise("D2")
@pytest.mark.figure("CR-1")
@pytest.mark.timeout(600)
def test_what_was_acknowledged_survives_the_mount(
    mount: Callable[[], MountProcess],
    figures: Figures,
    record_property: Callable[[str, object], None],
) -> None:
    drive = mount()
    writers = [Writer(drive.path, f"w{number}", number) for number in range(WRITERS)]
    for writer in writers:
        writer.directory.mkdir()
    back: list[float] = []
    for number in figures(ci=80, long=5000):
        chosen = random.Random(number)
        for writer in writers:
            writer.start()
        if number % 2:
            writers[0].closing.wait(LONGEST)
            time.sleep(chosen.uniform(0, HIT))
        else:
            time.sleep(chosen.uniform(0, LONGEST))
        drive.kill()
        for writer in writers:
            writer.join()
        wait_for_the_dead(drive.config)
        began = time.monotonic()
        drive.start()
        (drive.path / "probe").write_bytes(b"usable")
        back.append(time.monotonic() - began)
        wrong = [line for writer in writers for line in writer.verify()]
        assert not wrong, f"round {number}: {wrong}"
        if number % FSCK == 0:
            fsck_clean(drive.config)
    calls = sum(sum(writer.calls.values()) for writer in writers)
    print(f"{len(back)} kills, {calls} calls, usable again in {median(back):.2f} s,", end=" ")
    print(f"at most {max(back):.2f} s")
    record_property("usable again, seconds", max(back))


def median(values: list[float]) -> float:
    """The middle one."""
    return sorted(values)[len(values) // 2]
