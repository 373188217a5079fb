"""Drives in boxes: host mounts that appear at /wrk of a running box, and go again."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.backends import mounts
from boxd.errors import Conflict, Unavailable
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.backend import BoxHost


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
        program = "import os; os.chdir('/wrk'); f = open('/wrk/busy', 'w'); os.kill(1, 0); "
        program += "import time; time.sleep(3600)"
        await box_host.run(box, "sh", "-c", f'python3 -c "{program}" >/dev/null 2>&1 &')
        await until((source / "busy").exists)
        with pytest.raises(Conflict, match=r"/wrk is in use by pid \d+ \(python3\)"):
            await box_host.backend.detach_drive(box)
        await box_host.run(box, "sh", "-c", "pkill python3")
        assert (await box_host.run(box, "sh", "-c", "while pgrep python3; do :; done")).status == 0
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
    assert (await box_host.run(box, "cat", "/etc/debian_version")).status == 0


async def test_a_source_that_is_not_mounted_is_refused(box_host: BoxHost, tmp_path: Path) -> None:
    box = await box_host.box()
    with pytest.raises(Unavailable, match="not mounted"):
        await box_host.backend.attach_drive(box, tmp_path)
