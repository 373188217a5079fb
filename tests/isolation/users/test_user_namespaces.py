"""The user namespace of a box: its ids, its root, and what lies on disks and drives."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends.host import id_maps
from boxd.backends.host.id_ranges import IdRange

if TYPE_CHECKING:
    from tests.harness.boxes.backend import BoxHost


async def test_root_in_a_box_is_an_unprivileged_user_of_the_host(box_host: BoxHost) -> None:
    one, other = box_host.pid(await box_host.box()), box_host.pid(await box_host.box())
    ranges = {id_maps.of_process(pid) for pid in (one, other)}
    assert len(ranges) == 2
    for pid in (one, other):
        first = id_maps.of_process(pid)
        assert first is not None
        assert Path(f"/proc/{pid}").stat().st_uid == first
        assert (Path(f"/proc/{pid}/uid_map").read_text().split()) == ["0", str(first), "65536"]


async def test_files_on_the_disk_have_the_ids_that_the_box_sees(box_host: BoxHost) -> None:
    box = await box_host.box()
    script = (
        "touch /root/mine /root/last && chown 1000:1001 /root/mine && chown 65535:65535 /root/last"
        " && stat -c %u:%g /root/mine /root/last /etc/passwd /run/box /.box; chown 65536 /root/mine"
    )
    result = await box_host.run(box, "sh", "-c", script)
    assert result.out.split() == ["1000:1001", "65535:65535", "0:0", "0:0", "0:0"]
    assert result.status != 0
    layers = (box_host.config.state_dir / "disks", box_host.names.paths(box).directory)
    (upper,) = [path for top in layers for path in top.glob("**/layer/upper/root")]
    found = os.stat(upper / "mine")
    assert (found.st_uid, found.st_gid) == (1000, 1001)
    assert os.stat(upper / "last").st_uid == 65535


async def test_set_uid_programs_reach_only_root_of_the_box(box_host: BoxHost) -> None:
    box = await box_host.box()
    script = (
        "cp /bin/sleep /tmp/sleep && chmod 4755 /tmp/sleep && cp /usr/bin/id /tmp/id"
        " && chmod 4755 /tmp/id && chmod 755 /tmp && setpriv --reuid 1000 --clear-groups /tmp/id -u"
    )
    result = await box_host.run(box, "sh", "-c", script)
    assert (result.status, result.out.split()) == (0, ["0"]), result.err


async def test_programs_change_their_user(box_host: BoxHost) -> None:
    box = await box_host.box()
    script = "useradd -m dev && su dev -c 'id -un; touch ~/file' && stat -c %U ~dev/file"
    result = await box_host.run(box, "sh", "-c", script)
    assert result.out.split() == ["dev", "dev"], result.err


async def test_files_of_an_image_with_foreign_ids_belong_to_nobody(
    box_host: BoxHost, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    for directory in ("bin", "etc", "proc", "sys", "dev", "run", "wrk", ".box", "root", "tmp"):
        (image / directory).mkdir(parents=True)
    shutil.copy("/bin/busybox", image / "bin/busybox")
    for name in ("sh", "sleep", "stat", "cat", "rm", "chown"):
        (image / "bin" / name).symlink_to("busybox")
    (image / "etc/foreign").write_text("text")
    os.chown(image / "etc/foreign", 70_000, 4_000_000_000)
    box = await box_host.box(rootfs=image)
    script = "stat -c %u:%g /etc/foreign; cat /etc/foreign; chown 1 /etc/foreign || rm /etc/foreign"
    result = await box_host.run(box, "/bin/sh", "-c", script)
    assert result.out.splitlines() == ["65534:65534", "text"]
    assert result.status != 0
    assert (image / "etc/foreign").read_text() == "text"


async def test_capabilities_of_files_reach_only_the_box(box_host: BoxHost) -> None:
    """A file's capability is one of the box's root, and only within the bounding set."""
    box = await box_host.box()
    program = (
        "import os, struct\n"
        "data = struct.pack('<5I', 0x2000001, 1 << 10 | 1 << 21, 0, 0, 0)\n"
        "open('/tmp/program', 'w').close()\n"
        "try:\n"
        "    os.setxattr('/tmp/program', 'security.capability', data)\n"
        "except PermissionError:\n"
        "    print('refused')\n"
    )
    assert (await box_host.python(box, program)).out == "refused\n"


async def test_a_mount_of_a_killed_service_goes_with_its_box(box_host: BoxHost) -> None:
    box = await box_host.box()
    first = id_maps.of_process(box_host.pid(box))
    mounts = box_host.names.paths(box).mounts
    by = id_maps.IdMap(IdRange(first or 0), box_host.names.users / str(first))
    # Mounted until the overlay of the root exists; a service killed in between leaves it.
    id_maps.bind(box_host.names.paths(box).directory, mounts / "mapped-0", by)
    await box_host.backend.stop(box)
    assert not mounts.exists()
    assert str(mounts) not in Path("/proc/self/mountinfo").read_text()
    await box_host.backend.start(box)
    assert (await box_host.run(box, "true")).status == 0
