"""Suspended boxes and their drive: what is open on /wrk, and changes there while a box sleeps."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from boxd.errors import Unavailable
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.boxes.suspending import Guest, Sleepy
    from tests.harness.mounts.drive import MountProcess

pytestmark = pytest.mark.timeout(300)


async def at_drive(sleepy: Sleepy, mount: MountProcess, *words: str) -> Guest:
    """A guest in a box that has the mount at /wrk."""
    box = await sleepy.host.box()
    await sleepy.host.backend.attach_drive(box, mount.path)
    return await sleepy.guest(*words, box=box)


async def test_what_is_open_on_the_drive_lives_on(
    sleepy: Sleepy, mount: Callable[..., MountProcess]
) -> None:
    drive = mount()
    (drive.path / "dir").mkdir()
    guest = await at_drive(sleepy, drive, "file=/wrk/log", "cwd=/wrk/dir", "watch=/wrk/dir")
    still = (await sleepy.suspend(guest))["tick"]
    await sleepy.host.backend.resume(guest.box, drive.path)
    after = await guest.goes_on(still)
    assert after["cwd"] == "/wrk/dir"
    assert (drive.path / "log").read_text().splitlines()[:still] == [
        str(number + 1) for number in range(still)
    ]
    (drive.path / "dir" / "new").touch()
    await until(lambda: "/wrk/dir/new" in guest.state()["seen"])


async def test_changes_on_the_drive_are_seen(
    sleepy: Sleepy, mount: Callable[..., MountProcess]
) -> None:
    """A file that grew, with another mount process; it is mapped as well as open."""
    drive = mount()
    (drive.path / "data").write_bytes(b"a" * 100)
    guest = await at_drive(sleepy, drive, "file=/wrk/log", "map=/wrk/data")
    await guest.goes_on()
    assert guest.state()["first"] == ord("a")
    still = (await sleepy.suspend(guest))["tick"]
    assert drive.stop() == 0
    drive.start()
    (drive.path / "data").write_bytes(b"b" * 9000)
    with (drive.path / "log").open("a") as file:
        file.write("x" * 1000)
    await sleepy.host.backend.resume(guest.box, drive.path)
    await guest.goes_on(still)
    # What it tells first it may have looked at before it slept.
    await until(lambda: guest.state()["first"] == ord("b"))


@pytest.mark.parametrize("how", ["removed", "replaced", "cut", "now a directory"])
async def test_what_is_gone_from_the_drive_costs_no_memory(
    sleepy: Sleepy, mount: Callable[..., MountProcess], how: str
) -> None:
    drive = mount()
    (drive.path / "dir").mkdir()
    (drive.path / "data").write_bytes(b"a" * 10_000)
    words = ("file=/wrk/log", "map=/wrk/data", "cwd=/wrk/dir")
    guest = await at_drive(sleepy, drive, *words)
    still = (await sleepy.suspend(guest))["tick"]
    for name in ("log", "data"):
        place = drive.path / name
        if how == "cut":
            os.truncate(place, 1)
            continue
        place.unlink()
        if how == "replaced":
            place.write_bytes(b"c" * 50)
        if how == "now a directory":
            place.mkdir()
    if how == "removed":
        (drive.path / "dir").rmdir()
    await sleepy.host.backend.resume(guest.box, drive.path)
    await guest.goes_on(still)
    links = 1 if how in ("replaced", "cut") else 0
    await until(lambda: guest.state()["links"] == links)  # what stands in goes after the restore
    where = "" if how == "removed" else "/wrk/dir"
    await until(lambda: guest.state()["cwd"] == where)
    root = sleepy.host.names.paths(guest.box).root
    assert [place.name for place in root.iterdir() if place.name.startswith(".gone")] == []


async def test_without_its_drive_a_box_keeps_sleeping(
    sleepy: Sleepy, mount: Callable[..., MountProcess]
) -> None:
    drive = mount()
    guest = await at_drive(sleepy, drive, "file=/wrk/log")
    backend = sleepy.host.backend
    still = (await sleepy.suspend(guest))["tick"]
    with pytest.raises(Unavailable, match="resume only with it"):
        await backend.resume(guest.box, None)
    assert drive.stop() == 0
    with pytest.raises(Unavailable, match="not mounted"):
        await backend.resume(guest.box, drive.path)
    assert [(box.running, box.memory) for box in await backend.list()] == [(False, True)]
    drive.start()
    await backend.resume(guest.box, drive.path)
    await guest.goes_on(still)
