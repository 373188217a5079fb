"""A box that fills its disk fails alone: what it sees, and what others do not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.backends.disks import btrfs, loopdev
from boxd.errors import DiskFull
from tests.harness.boxes.backend import BOXES_SIZE, open_box_host
from tests.harness.wait import until

if TYPE_CHECKING:
    from tests.harness.boxes.backend import BoxHost

MIB = 1 << 20
LIMIT_MB = 64
METADATA_STEP = 256 * MIB
"""The file system takes space for names and inodes in pieces."""
FILL = "dd if=/dev/urandom of=/root/fill bs=1M"
FILES = """
import errno, os
made = 0
try:
    os.mkdir("/root/many")
    while True:
        with open(f"/root/many/{made}", "wb") as file:
            file.write(b"x" * 3000)
        made += 1
except OSError as error:
    print(made, errno.errorcode[error.errno])
"""
LINKS = """
import errno, os
made = 0
try:
    os.mkdir("/root/deep")
    while True:
        os.symlink("t" * 3000, f"/root/deep/{made}" + "n" * 200)
        made += 1
except OSError as error:
    print(made, errno.errorcode[error.errno])
"""
NEIGHBOUR = "dd if=/dev/urandom of=/root/mine bs=1M count=20 conv=fsync"


async def test_the_limit_holds_inside_only(box_host: BoxHost) -> None:
    assert box_host.backend.capabilities().disk_limit
    greedy = await box_host.box(disk_mb=LIMIT_MB)
    neighbour = await box_host.box(disk_mb=LIMIT_MB)
    free = _free(box_host)
    filled = await box_host.run(greedy, "/bin/sh", "-c", FILL)
    assert filled.status == 1
    assert "Disk quota exceeded" in filled.err
    assert free - _free(box_host) < (LIMIT_MB + 16) * MIB
    used = (await box_host.backend.stats(greedy)).disk_bytes
    assert 0.9 * LIMIT_MB * MIB < used <= LIMIT_MB * MIB
    assert (await box_host.run(neighbour, "/bin/sh", "-c", NEIGHBOUR)).status == 0
    assert (await box_host.run(greedy, "/bin/ls", "/root/fill")).status == 0
    # It recovers by itself: what it removes it can write anew, without anybody's help.
    assert (await box_host.run(greedy, "/bin/rm", "/root/fill")).status == 0
    assert (await box_host.run(greedy, "/bin/sh", "-c", NEIGHBOUR)).status == 0


@pytest.mark.parametrize("program", [FILES, LINKS], ids=["files", "names"])
async def test_small_things_count(box_host: BoxHost, program: str) -> None:
    """Space that is taken by names and inodes alone counts, too."""
    greedy = await box_host.box(disk_mb=LIMIT_MB)
    free = _free(box_host)
    filled = await box_host.python(greedy, program)
    assert filled.out.split()[1:] == ["EDQUOT"], filled
    assert free - _free(box_host) < LIMIT_MB * MIB + METADATA_STEP
    assert (await box_host.backend.stats(greedy)).disk_bytes <= LIMIT_MB * MIB


async def test_a_full_box_stops_and_starts(box_host: BoxHost) -> None:
    greedy = await box_host.box(disk_mb=LIMIT_MB)
    await box_host.run(greedy, "/bin/sh", "-c", FILL)
    await box_host.backend.stop(greedy)
    await box_host.backend.start(greedy)
    assert (await box_host.run(greedy, "/bin/cat", "/etc/hostname")).out == "testbox\n"
    again = await box_host.run(greedy, "/bin/sh", "-c", f"{FILL} seek=1000 conv=notrunc")
    assert "Disk quota exceeded" in again.err
    assert (await box_host.run(greedy, "/bin/rm", "/root/fill")).status == 0


async def test_all_boxes_together_leave_the_host_alone(box_host: BoxHost) -> None:
    """Without limits of their own boxes share the volume: when it is full, the host is not."""
    greedy = await box_host.box(disk_mb=0)
    neighbour = await box_host.box(disk_mb=LIMIT_MB)
    state = box_host.config.state_dir
    filled = await box_host.run(greedy, "/bin/sh", "-c", FILL)
    assert filled.status == 1
    assert "Disk quota exceeded" in filled.err or "No space left" in filled.err
    assert _free(box_host) < BOXES_SIZE // 4
    image = (state / "disks.img").stat()
    assert image.st_blocks * 512 >= image.st_size == BOXES_SIZE
    (state / "own").write_bytes(os.urandom(8 * MIB))
    assert (await box_host.run(neighbour, "/bin/cat", "/etc/hostname")).out == "testbox\n"
    with pytest.raises(DiskFull, match="remove boxes or snapshots"):
        await box_host.box()
    await box_host.backend.destroy(greedy)
    await until(lambda: _free(box_host) > BOXES_SIZE // 2)
    assert (await box_host.run(neighbour, "/bin/sh", "-c", NEIGHBOUR)).status == 0
    await box_host.box()


async def test_nothing_of_the_volume_stays(tmp_path: Path, image_rootfs: Path) -> None:
    async with open_box_host(tmp_path / "state", image_rootfs) as host:
        box = await host.box(disk_mb=LIMIT_MB)
        await host.run(box, "/bin/sh", "-c", NEIGHBOUR)
        device = loopdev.find(tmp_path / "state/disks.img")
        assert device is not None
        # Boxes stay with their disks when a daemon ends and another one takes over.
        await host.backend.close()
        assert (await host.run(box, "/bin/ls", "/root/mine")).status == 0
    behind = Path("/sys/block") / device.name / "loop/backing_file"
    assert not behind.exists() or str(tmp_path) not in behind.read_text()
    assert not any((tmp_path / "state/disks").iterdir())


def _free(host: BoxHost) -> int:
    """Bytes that the volume has left, after the kernel freed what was removed."""
    top = host.config.state_dir / "disks"
    btrfs.sync(top)
    status = os.statvfs(top)
    return status.f_bavail * status.f_frsize
