"""Drives in boxes: host mounts that appear at /wrk of a running box, and go again."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from boxd.backends.host import mounts
from boxd.errors import Conflict, Unavailable
from tests.harness.boxes.backend import BoxHost, open_box_host
from tests.harness.boxes.dockerd import open_docker_host

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest_asyncio.fixture(params=["runc", "docker"])
async def box_host(
    request: pytest.FixtureRequest, tmp_path: Path, image_rootfs: Path, busybox_root: Path
) -> AsyncIterator[BoxHost]:
    """The backends that have boxes with a mount namespace, in turn."""
    if request.param == "runc":
        async with open_box_host(tmp_path / "state", image_rootfs) as host:
            yield host
        return
    engine = request.getfixturevalue("dockerd")
    async with open_docker_host(engine, tmp_path / "state", busybox_root) as docker:
        yield docker


@contextmanager
def tmpfs(directory: Path, marker: str) -> Iterator[Path]:
    """A file system of its own on the host with one file in it."""
    directory.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "suid,dev", "test", directory], check=True)
    try:
        (directory / "marker").write_text(marker)
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


def mounted(host: BoxHost, box: str) -> str | None:
    """Device of what is at /wrk in the box."""
    return mounts.device_at(Path(f"/proc/{host.pid(box)}/mountinfo"), "/wrk")


async def test_attached_drive_is_shared_and_strict(box_host: BoxHost, tmp_path: Path) -> None:
    box, other = await box_host.box(), await box_host.box()
    with tmpfs(tmp_path / "drive", "first") as source:
        await box_host.backend.attach_drive(box, source)
        await box_host.backend.attach_drive(other, source)
        assert (await box_host.run(box, "cat", "/wrk/marker")).out == "first"
        await box_host.run(box, "sh", "-c", "echo from a box > /wrk/new")
        assert (source / "new").read_text() == "from a box\n"
        assert (await box_host.run(other, "cat", "/wrk/new")).out == "from a box\n"
        options = (await box_host.run(box, "grep", " /wrk ", "/proc/mounts")).out.split()[3]
        assert {"nosuid", "nodev"} <= set(options.split(","))
        await box_host.backend.detach_drive(box)
        assert mounted(box_host, box) is None
        assert (await box_host.run(other, "cat", "/wrk/marker")).out == "first"


async def test_attaching_the_same_drive_again_changes_nothing(
    box_host: BoxHost, tmp_path: Path
) -> None:
    box = await box_host.box()
    with tmpfs(tmp_path / "drive", "first") as source:
        await box_host.backend.attach_drive(box, source)
        mountinfo = Path(f"/proc/{box_host.pid(box)}/mountinfo")
        before = mountinfo.read_text()
        await box_host.backend.attach_drive(box, source)
        assert mountinfo.read_text() == before


async def test_a_stale_drive_is_replaced(box_host: BoxHost, tmp_path: Path) -> None:
    box = await box_host.box()
    directory = tmp_path / "drive"
    with tmpfs(directory, "first"):
        await box_host.backend.attach_drive(box, directory)
        first = mounted(box_host, box)
    with tmpfs(directory, "second") as source:
        await box_host.backend.attach_drive(box, source)
        assert mounted(box_host, box) != first
        assert (await box_host.run(box, "cat", "/wrk/marker")).out == "second"
        lines = Path(f"/proc/{box_host.pid(box)}/mountinfo").read_text().splitlines()
        assert sum(line.split()[4] == "/wrk" for line in lines) == 1


async def test_a_drive_in_use_stays_and_its_holders_are_named(
    box_host: BoxHost, tmp_path: Path
) -> None:
    box = await box_host.box()
    with tmpfs(tmp_path / "drive", "first") as source:
        await box_host.backend.attach_drive(box, source)
        (source / "busy").touch()
        holder = "(cd /wrk && exec tail -f busy) </dev/null >/dev/null 2>&1 & echo $!"
        pid = (await box_host.run(box, "sh", "-c", holder)).out.strip()
        opened = f"timeout 20 sh -c 'until ls -l /proc/{pid}/fd | grep /wrk/busy; do :; done'"
        assert (await box_host.run(box, "sh", "-c", opened)).status == 0
        with pytest.raises(Conflict, match=rf"/wrk is in use by pid {pid} \(tail\)"):
            await box_host.backend.detach_drive(box)
        ended = f"kill {pid}; timeout 20 sh -c 'while [ -e /proc/{pid} ]; do :; done'"
        assert (await box_host.run(box, "sh", "-c", ended)).status == 0
        await box_host.backend.detach_drive(box)
        assert mounted(box_host, box) is None


async def test_a_mount_point_that_the_box_removed_is_made_again(
    box_host: BoxHost, tmp_path: Path
) -> None:
    box = await box_host.box()
    await box_host.run(box, "rmdir", "/wrk")
    with tmpfs(tmp_path / "drive", "first") as source:
        await box_host.backend.attach_drive(box, source)
        assert (await box_host.run(box, "cat", "/wrk/marker")).out == "first"


async def test_a_planted_link_is_not_followed(box_host: BoxHost, tmp_path: Path) -> None:
    box = await box_host.box()
    await box_host.run(box, "sh", "-c", "rmdir /wrk && ln -s /etc /wrk")
    with (
        tmpfs(tmp_path / "drive", "first") as source,
        pytest.raises(Unavailable, match="attach of the drive failed"),
    ):
        await box_host.backend.attach_drive(box, source)
    assert (await box_host.run(box, "cat", "/etc/hostname")).status == 0


async def test_a_source_that_is_not_mounted_is_refused(box_host: BoxHost, tmp_path: Path) -> None:
    box = await box_host.box()
    with pytest.raises(Unavailable, match="not mounted"):
        await box_host.backend.attach_drive(box, tmp_path)
