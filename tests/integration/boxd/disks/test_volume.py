"""The volume for boxes: a real image file, loop device and btrfs."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from boxd.backends.disks import btrfs, loopdev, volume
from boxd.backends.disks.btrfs import Quota
from boxd.backends.disks.kinds import Disks
from boxd.backends.disks.volume import Volume
from boxd.backends.host import mounts, overlays
from boxd.backends.host.names import HostNames
from boxd.backends.host.run import CommandFailed, run
from boxd.errors import DiskFull, NotFound, Unavailable
from tests.harness.boxes.disks import VOLUME_SIZE
from tests.harness.wait import DEADLINE, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.plugins.strict_logs import AssertLogs

MIB = 1 << 20


@pytest_asyncio.fixture
async def state(tmp_path: Path) -> AsyncIterator[Path]:
    """A state directory; nothing is mounted there afterwards, and no device has its image."""
    state = tmp_path / "state"
    (state / "boxes").mkdir(parents=True)
    yield state
    for place in mounts.mount_points(Path("/proc/self/mountinfo")):
        if place.startswith(f"{state}/boxes/"):
            mounts.unmount(Path(place), lazily=True)
    await Volume(state, None).close()
    assert not mounts.is_mounted(state / "disks")
    if (state / "disks.img").exists():
        assert loopdev.find(state / "disks.img") is None


async def test_a_new_volume(state: Path) -> None:
    one = Volume(state, VOLUME_SIZE)
    assert one.outlook() == f"{state}/disks.img, 300M (will be created)"
    await one.open()
    image = (state / "disks.img").stat()
    assert image.st_size == VOLUME_SIZE
    assert image.st_blocks * 512 >= VOLUME_SIZE
    assert stat.S_IMODE(image.st_mode) == 0o600
    assert stat.S_IMODE(one.top.stat().st_mode) == 0o700
    assert btrfs.quota(one.top) is not Quota.OFF
    assert one.outlook() == f"{state}/disks.img, 300M"
    assert [p.name for p in state.glob("disks*")] == ["disks", "disks.img"]


async def test_the_next_daemon_finds_it(state: Path) -> None:
    await Volume(state, VOLUME_SIZE).open()
    (state / "disks/file").write_text("box")
    device = loopdev.find(state / "disks.img")
    await Volume(state, VOLUME_SIZE).open()
    assert loopdev.find(state / "disks.img") == device
    places = mounts.mount_points(Path("/proc/self/mountinfo"))
    assert places.count(str(state / "disks")) == 1
    assert (state / "disks/file").read_text() == "box"


async def test_a_device_that_somebody_else_keeps_is_used_again(state: Path) -> None:
    """As when a mount of the volume lives on in a mount namespace that is not ours."""
    one = Volume(state, VOLUME_SIZE)
    await one.open()
    with loopdev.attached(state / "disks.img") as device:
        await one.close()
        assert loopdev.find(state / "disks.img") == device
        await one.open()
        assert loopdev.find(state / "disks.img") == device
        await one.close()
    assert loopdev.find(state / "disks.img") is None


async def test_it_stays_while_a_root_stands_on_it(state: Path) -> None:
    one = Volume(state, VOLUME_SIZE)
    await one.open()
    root, lower = state / "boxes/b/root", state / "image"
    for directory in (root, lower, one.top / "layer/upper", one.top / "layer/work"):
        directory.mkdir(parents=True)
    await overlays.mount_overlay(root, lower, one.top / "layer")
    await one.close()
    assert mounts.is_mounted(one.top)
    mounts.unmount(root, lazily=False)
    await one.close()
    assert not mounts.is_mounted(one.top)


async def test_content_and_limits_outlive_a_close(state: Path) -> None:
    one = Volume(state, VOLUME_SIZE)
    await one.open()
    btrfs.create_subvolume(one.top / "box")
    btrfs.limit(one.top / "box", 10 * MIB)
    await one.close()
    await one.open()
    with pytest.raises(OSError, match="Disk quota exceeded"):
        (one.top / "box/file").write_bytes(os.urandom(20 * MIB))
    btrfs.limit(one.top / "box", 0)
    (one.top / "box/file").write_bytes(os.urandom(20 * MIB))


@pytest.mark.parametrize("mounted", [True, False])
async def test_growing(state: Path, mounted: bool) -> None:
    one = Volume(state, VOLUME_SIZE)
    await one.open()
    (one.top / "file").write_text("box")
    if not mounted:
        await one.close()
    await Volume(state, 2 * VOLUME_SIZE).open()
    assert _size(one.top) == 2 * VOLUME_SIZE
    assert (state / "disks.img").stat().st_blocks * 512 >= 2 * VOLUME_SIZE
    await Volume(state, VOLUME_SIZE).open()
    await Volume(state, None).open()
    assert _size(one.top) == 2 * VOLUME_SIZE
    assert (one.top / "file").read_text() == "box"


async def test_a_host_without_space_keeps_what_is_there(
    state: Path, assert_logs: AssertLogs
) -> None:
    await Volume(state, VOLUME_SIZE).open()
    with assert_logs("cannot grow"):
        await Volume(state, 1 << 50).open()
    assert _size(state / "disks") == VOLUME_SIZE


async def test_a_half_made_image_is_made_again(state: Path) -> None:
    (state / "disks.new").write_bytes(b"half" * 1000)
    one = Volume(state, VOLUME_SIZE)
    await one.open()
    assert _size(one.top) == VOLUME_SIZE
    assert not (state / "disks.new").exists()


async def test_blocks_never_go_back_to_the_host(state: Path) -> None:
    one = Volume(state, VOLUME_SIZE)
    await one.open()
    (one.top / "file").write_bytes(os.urandom(50 * MIB))
    btrfs.sync(one.top)
    (one.top / "file").unlink()
    btrfs.sync(one.top)
    with suppress(CommandFailed):
        await run("fstrim", str(one.top))
    assert (state / "disks.img").stat().st_blocks * 512 >= VOLUME_SIZE
    await one.close()
    hole = ("--punch-hole", "--offset", str(200 * MIB), "--length", str(MIB))
    await run("fallocate", *hole, str(state / "disks.img"))
    assert (state / "disks.img").stat().st_blocks * 512 < VOLUME_SIZE
    await one.open()
    assert (state / "disks.img").stat().st_blocks * 512 >= VOLUME_SIZE


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (0, r"--boxes-size is 0"),
        (MIB, r"1M for boxes is too small"),
        (1 << 50, r"no space for an image of 1048576G.*smaller --boxes-size"),
    ],
)
async def test_why_there_is_none(state: Path, size: int, reason: str) -> None:
    with pytest.raises(Unavailable, match=reason):
        Volume(state, size).outlook()
    with pytest.raises(Unavailable, match=reason):
        await Volume(state, size).open()
    assert [p.name for p in state.iterdir()] == ["boxes"]


async def test_what_the_host_lacks(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopdev, "CONTROL", state / "absent")
    with pytest.raises(Unavailable, match="no loop devices"):
        await Volume(state, VOLUME_SIZE).open()
    monkeypatch.setattr(volume, "MKFS", "mkfs.absent")
    with pytest.raises(Unavailable, match=r"mkfs.absent is missing; apt-get install btrfs-progs"):
        await Volume(state, VOLUME_SIZE).open()
    assert [p.name for p in state.iterdir()] == ["boxes"]


async def test_memory_is_not_taken_without_being_asked_for(tmp_path: Path) -> None:
    await run("mount", "-t", "tmpfs", "-o", "size=14g", "tmpfs", str(tmp_path))
    try:
        with pytest.raises(Unavailable, match="is in memory"):
            Volume(tmp_path / "state", None).outlook()
        assert Volume(tmp_path / "state", VOLUME_SIZE).outlook().endswith("300M (will be created)")
    finally:
        mounts.unmount(tmp_path, lazily=False)


async def test_a_host_whose_mkfs_fails(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume, "MKFS", "false")
    with pytest.raises(Unavailable, match="the image for boxes cannot be created: false failed"):
        await Volume(state, VOLUME_SIZE).open()
    assert [p.name for p in state.iterdir()] == ["boxes"]


async def test_the_hosts_own_btrfs(tmp_path: Path) -> None:
    with _btrfs(tmp_path) as top:
        btrfs.enable_quota(top)
        state = top / "state"
        state.mkdir()
        one = Volume(state, VOLUME_SIZE)
        assert one.outlook() == "the btrfs of the state directory"
        await one.open()
        btrfs.create_subvolume(one.top / "box")
        btrfs.limit(one.top / "box", 10 * MIB)
        with pytest.raises(OSError, match="Disk quota exceeded"):
            (one.top / "box/file").write_bytes(os.urandom(20 * MIB))
        assert [p.name for p in state.iterdir()] == ["disks"]
        await one.close()


async def test_the_hosts_own_btrfs_that_does_not_count(tmp_path: Path) -> None:
    with _btrfs(tmp_path) as top:
        state = top / "state"
        state.mkdir()
        one = Volume(state, VOLUME_SIZE)
        await one.open()
        assert "C" in (await run("lsattr", str(state / "disks.img"))).split()[0]
        assert btrfs.quota(top) is Quota.OFF
        assert btrfs.quota(one.top) is not Quota.OFF
        await one.close()


async def test_boxes_of_both_kinds(state: Path) -> None:
    names = HostNames("abcdef", state)
    paths = names.paths("old")
    disks = Disks(names, 0)
    await disks.open()
    assert not disks.for_new.limits_size()
    await disks.for_new.create(paths, 10)
    await disks.for_new.snapshot(paths, "kept")
    with pytest.raises(Unavailable, match="--boxes-size is 0"):
        disks.named("btrfs")
    disks = Disks(names, VOLUME_SIZE)
    await disks.open()
    assert disks.for_new.limits_size()
    assert disks.named("plain").upper(paths).is_dir()
    await disks.for_new.create(names.paths("new"), 10)
    await disks.for_new.snapshot(names.paths("new"), "later")
    assert disks.snapshots() == ["kept", "later"]
    assert disks.holding("kept").kind == "plain"
    assert disks.holding("later").kind == "btrfs"
    with pytest.raises(NotFound, match="no snapshot other"):
        disks.holding("other")
    await disks.close()
    again = Disks(names, 0)
    await again.open()
    assert not again.for_new.limits_size()
    assert again.named("btrfs").upper(names.paths("new")).is_dir()
    for name in ("old", "new"):
        await again.remove(names.paths(name))
    assert not again.named("btrfs").upper(names.paths("new")).exists()


async def test_a_volume_that_is_broken(state: Path, assert_logs: AssertLogs) -> None:
    (state / "disks.img").write_bytes(bytes(MIB))
    disks = Disks(HostNames("abcdef", state), None)
    with assert_logs("disks of boxes have no limit"):
        await disks.open()
    assert not disks.for_new.limits_size()
    with pytest.raises(Unavailable, match="cannot be mounted as btrfs"):
        disks.named("btrfs")


async def test_what_a_box_left_that_was_removed_meanwhile(state: Path) -> None:
    names = HostNames("abcdef", state)
    disks = Disks(names, VOLUME_SIZE)
    await disks.open()
    for name in ("here", "gone"):
        await disks.for_new.create(names.paths(name), 10)
    again = Disks(names, VOLUME_SIZE)
    await again.open()
    # Rows tell which of them is a box: nothing is removed by what the host has.
    assert again.box_ids() == {"here", "gone"}
    (state / "disks/boxes/gone/by-an-operator").write_text("x")
    await again.remove(names.paths("gone"))
    assert again.for_new.upper(names.paths("here")).exists()
    assert again.box_ids() == {"here"}


async def test_nothing_is_counted_for_what_was_removed(state: Path) -> None:
    names = HostNames("abcdef", state)
    disks = Disks(names, VOLUME_SIZE)
    await disks.open()
    before = _counted(state / "disks")
    for number in range(20):
        paths = names.paths(f"box{number}")
        await disks.for_new.create(paths, 20)
        (disks.for_new.upper(paths) / "file").write_bytes(os.urandom(8 * MIB))
        await disks.for_new.snapshot(paths, f"s{number}")
        await disks.for_new.clone(f"s{number}", names.paths(f"clone{number}"), 10)
    assert len(_counted(state / "disks") - before) == 60
    for number in range(20):
        await disks.remove(names.paths(f"box{number}"))
        await disks.for_new.drop_snapshot(f"s{number}")
        await disks.remove(names.paths(f"clone{number}"))
    async with asyncio.timeout(DEADLINE):  # the kernel removes them in the background
        while _counted(state / "disks") != before:
            await Volume(state, VOLUME_SIZE).open()


async def test_new_boxes_leave_space_to_others(state: Path) -> None:
    names = HostNames("abcdef", state)
    disks = Disks(names, VOLUME_SIZE)
    await disks.open()
    await disks.for_new.create(names.paths("one"), 0)
    await disks.for_new.snapshot(names.paths("one"), "kept")
    upper = disks.for_new.upper(names.paths("one"))
    # By the limit of all layers together; of kernels before 6.7, by the end of the space.
    with pytest.raises(OSError, match=r"Disk quota exceeded|No space left"):
        await asyncio.to_thread((upper / "file").write_bytes, os.urandom(VOLUME_SIZE))
    btrfs.sync(state / "disks")
    with pytest.raises(
        DiskFull, match=r"\d+ MiB are free, and 64 MiB are reserved for existing boxes"
    ):
        await disks.for_new.create(names.paths("two"), 0)
    with pytest.raises(DiskFull):
        await disks.for_new.clone("kept", names.paths("two"), 0)
    with pytest.raises(DiskFull):
        await disks.for_new.snapshot(names.paths("one"), "more")
    assert disks.snapshots() == ["kept"]
    await disks.for_new.remove(names.paths("one"))
    await until(lambda: _free(state / "disks") > 100 * MIB)
    await disks.for_new.create(names.paths("one"), 0)


async def test_memory_of_nobody_goes_at_the_next_start(state: Path) -> None:
    """What a crash has left beside snapshots, and what earlier releases kept on the volume."""
    names = HostNames("abcdef", state)
    disks = Disks(names, VOLUME_SIZE)
    await disks.open()
    paths, disk = names.paths("one"), disks.for_new
    await disk.create(paths, 0)
    memory = disk.memory_dir(paths)
    memory.mkdir(parents=True)
    await disk.snapshot(paths, "kept")
    kept = disk.snapshot_memory("kept")
    left = [kept.with_name("unknown"), kept.with_name("kept.copy"), disk.home(paths) / "memory"]
    for place in left:
        place.mkdir()
        (place / "pages.img").touch()
    await Disks(names, VOLUME_SIZE).open()
    assert memory.exists()
    assert kept.exists()
    assert [place for place in left if place.exists()] == []


def _counted(top: Path) -> set[str]:
    """The subvolumes that the kernel keeps account of."""
    btrfs.sync(top)
    table = subprocess.run(
        ["btrfs", "qgroup", "show", top], capture_output=True, text=True, check=True
    ).stdout
    return {line.split()[0] for line in table.splitlines() if line.startswith("0/")}


def _free(place: Path) -> int:
    """After the kernel had reason to free what was removed."""
    btrfs.sync(place)
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize


def _size(place: Path) -> int:
    status = os.statvfs(place)
    return status.f_blocks * status.f_frsize


@contextmanager
def _btrfs(directory: Path) -> Iterator[Path]:
    """A btrfs as a host may have it, not counting."""
    image, top = directory / "host.img", directory / "host"
    top.mkdir()
    with image.open("wb") as file:
        file.truncate(4 << 30)
    subprocess.run(["mkfs.btrfs", "--quiet", "--nodiscard", image], check=True)
    with loopdev.attached(image) as device:
        mounts.mount_device(device, top, "btrfs", "nodiscard")
    try:
        yield top
    finally:
        mounts.unmount(top, lazily=False)
