"""What a memory image takes on the host's disk is known before it is written, and counted after.

The room on the disk is the test's own figure: `disk._room` answers for a host with little of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from boxd.backends.disks import disk, image_size
from boxd.backends.disks.disk import MIB
from boxd.backends.host import cgroups
from boxd.errors import DiskFull
from tests.harness.boxes.programs import started

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.boxes.suspending import Guest, Sleepy

pytestmark = pytest.mark.timeout(300)

LEAST = 1024 * MIB
REMOVED = """
import os, time
for number in range(5):
    descriptor = os.open(f"/root/removed-{number}", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, os.urandom(40 << 20))
    os.unlink(f"/root/removed-{number}")
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
open("/root/ready", "w").close()
time.sleep(999)
"""
FORKED = """
import os, time
data = os.urandom(40 << 20)
for _ in range(5):
    if os.fork() == 0:
        time.sleep(999)
open("/root/ready", "w").close()
time.sleep(999)
"""


def room(monkeypatch: pytest.MonkeyPatch, *free: int) -> None:
    """So many bytes are free beyond what is left to others, each time somebody looks."""
    answers = list(free)

    def answer(directory: Path) -> tuple[int, int]:
        del directory
        return LEAST, LEAST + (answers.pop(0) if len(answers) > 1 else answers[0])

    monkeypatch.setattr(disk, "_room", answer)


async def refused(sleepy: Sleepy, guest: Guest, sentence: str) -> None:
    """A suspension ends in words, leaves nothing, and the box goes on."""
    backend = sleepy.host.backend
    await backend.freeze(guest.box)
    with pytest.raises(DiskFull, match=sentence):
        await backend.save_memory(guest.box)
    assert not list(sleepy.host.config.state_dir.glob(f"**/{guest.box}/memory*"))
    await backend.thaw(guest.box)
    await guest.goes_on()


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        (REMOVED, r"it needs \d+ MiB and 20\d MiB for its deleted open files\. 150 MiB"),
        (FORKED, r"it needs 2\d\d MiB\. 150 MiB"),
    ],
)
async def test_an_image_that_has_no_room_is_refused_before_it_is_written(
    sleepy: Sleepy, monkeypatch: pytest.MonkeyPatch, program: str, sentence: str
) -> None:
    """The memory of the cgroup alone would have room."""
    guest = await started(sleepy, program)
    cgroup = sleepy.host.names.cgroup(guest.box)
    assert cgroups.usage(cgroups.detect(), cgroup).memory_bytes < 150 * MIB
    room(monkeypatch, 150 * MIB)
    await refused(sleepy, guest, sentence.replace("150 MiB", f"{(LEAST >> 20) + 150} MiB"))


@pytest.mark.parametrize("program", [REMOVED, FORKED])
async def test_an_image_is_not_larger_than_its_estimate(sleepy: Sleepy, program: str) -> None:
    guest = await started(sleepy, program)
    layout, cgroup = cgroups.detect(), sleepy.host.names.cgroup(guest.box)
    await sleepy.host.backend.freeze(guest.box)
    memory = cgroups.usage(layout, cgroup).memory_bytes
    estimate = image_size.estimate(cgroups.pids_of(layout, cgroup), memory)
    await sleepy.host.backend.save_memory(guest.box)
    await sleepy.host.backend.stop(guest.box)
    image = sum(file.stat().st_blocks * 512 for file in sleepy.memory(guest.box).iterdir())
    assert 200 * MIB < image < estimate.total + 8 * MIB
    await sleepy.resume(guest)
    await guest.goes_on()


async def test_a_disk_that_becomes_full_ends_the_dump(
    sleepy: Sleepy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program takes the room after the estimate."""
    guest = await started(sleepy, FORKED)
    room(monkeypatch, 1 << 40, -1)
    await refused(sleepy, guest, "MiB are free now")
    monkeypatch.undo()
    asleep = await sleepy.suspend(guest)
    await sleepy.resume(guest)
    await guest.goes_on(asleep["tick"])


async def test_the_image_of_a_sleeping_box_counts(sleepy: Sleepy) -> None:
    guest = await sleepy.guest()
    backend = sleepy.host.backend
    assert (await backend.stats(guest.box)).saved_memory_bytes == 0
    asleep = await sleepy.suspend(guest)
    files = sleepy.memory(guest.box).iterdir()
    size = sum(file.stat().st_blocks * 512 for file in files)
    assert (await backend.stats(guest.box)).saved_memory_bytes == size > MIB
    await sleepy.resume(guest)
    await guest.goes_on(asleep["tick"])
    assert (await backend.stats(guest.box)).saved_memory_bytes == 0
