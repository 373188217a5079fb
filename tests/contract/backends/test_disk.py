"""What every kind of disk does: plain directories and subvolumes of a real btrfs volume."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from boxd.backends.host import id_maps, mounts
from boxd.backends.host.id_ranges import IdRange
from boxd.backends.host.run import run
from boxd.errors import NotFound
from boxd.sandbox.id_claims import FIRST
from tests.harness.boxes.disks import KINDS, DiskHost, open_disk_host

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from boxd.backends.host.names import BoxPaths

DEEP = 1500
"""More than Python's stack or a process's descriptors allow."""


@pytest_asyncio.fixture(params=KINDS)
async def host(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DiskHost]:
    """A disk of each kind."""
    async with open_disk_host(request.param, tmp_path) as host:
        yield host


async def test_what_a_box_writes_stays(host: DiskHost) -> None:
    paths = await host.box()
    assert (paths.old_root / "etc/motd").read_text() == "image\n"
    (paths.old_root / "etc/motd").write_text("box\n")
    (paths.old_root / "etc/gone").unlink()
    await host.disk.mount(paths, host.image, 0)
    mounts.unmount(paths.old_root, lazily=False)
    await host.disk.create(paths, 0)
    await host.disk.mount(paths, host.image, 0)
    assert (paths.old_root / "etc/motd").read_text() == "box\n"
    assert not (paths.old_root / "etc/gone").exists()
    assert (host.image / "etc/motd").read_text() == "image\n"
    assert (host.disk.upper(paths) / "etc/motd").read_text() == "box\n"


async def test_a_removed_box_leaves_nothing(host: DiskHost) -> None:
    paths, other = await host.box(), host.paths()
    memory = host.disk.memory_dir(paths)
    memory.mkdir()
    (memory / "pages.img").write_bytes(b"x" * 100_000)
    memory.with_name("memory.part").mkdir()
    for box in (paths, paths, other):
        await host.disk.remove(box)
    assert not mounts.is_mounted(paths.old_root)
    assert not host.disk.upper(paths).exists()
    assert not memory.exists()
    assert list(paths.directory.iterdir()) == []
    assert await host.disk.used(paths) == 0


async def test_every_file_shows_one_device_and_keeps_its_number(host: DiskHost) -> None:
    paths = await host.box()
    before = (paths.old_root / "etc/motd").stat()
    (paths.old_root / "etc/motd").write_text("box\n")
    (paths.old_root / "new").write_text("box\n")
    after = (paths.old_root / "etc/motd").stat()
    assert (after.st_dev, after.st_ino) == (before.st_dev, before.st_ino)
    devices = {p.lstat().st_dev for p in (paths.old_root, *paths.old_root.rglob("*"))}
    assert devices == {before.st_dev}


async def test_a_layer_of_an_earlier_release_mounts(host: DiskHost) -> None:
    paths = host.paths()
    await host.disk.create(paths, 0)
    upper = host.disk.upper(paths)
    old = f"lowerdir={host.image},upperdir={upper},workdir={upper.with_name('work')}"
    options = f"nodev,{old},index=off,metacopy=off,redirect_dir=off"
    paths.old_root.mkdir()
    await run("mount", "-t", "overlay", "overlay", "-o", options, str(paths.old_root))
    (paths.old_root / "etc/motd").write_text("old\n")
    (paths.old_root / "etc/gone").unlink()
    mounts.unmount(paths.old_root, lazily=False)
    await host.disk.mount(paths, host.image, 0)
    assert (paths.old_root / "etc/motd").read_text() == "old\n"
    assert not (paths.old_root / "etc/gone").exists()
    (paths.old_root / "lib/code").write_text("new\n")


async def test_a_box_of_an_earlier_release_gets_its_own_ids(host: DiskHost, tmp_path: Path) -> None:
    paths = await host.box()
    _change(paths.old_root)
    (paths.old_root / "mine").touch()
    os.chown(paths.old_root / "mine", 1000, 1001)
    texts = {name: facts[-1] for name, facts in _seen(paths.old_root).items()}
    mounts.unmount(paths.old_root, lazily=False)
    by = id_maps.pin(IdRange(FIRST), tmp_path / "users")
    try:
        await host.disk.mount(paths, host.image, 0, by)
        assert {name: facts[-1] for name, facts in _seen(paths.root).items()} == texts
        status = (paths.root / "mine").stat()
        assert (status.st_uid, status.st_gid) == (FIRST + 1000, FIRST + 1001)
        with id_maps.acting_as(by):
            (paths.root / "etc/motd").write_text("again\n")
        mounts.unmount(paths.root, lazily=False)
    finally:
        id_maps.unpin(by.namespace)


async def test_an_image_that_was_moved(host: DiskHost, tmp_path: Path) -> None:
    paths = await host.box()
    _change(paths.old_root)
    seen = _seen(paths.old_root)
    mounts.unmount(paths.old_root, lazily=False)
    shutil.copytree(host.image, tmp_path / "moved", symlinks=True)
    await host.disk.mount(paths, tmp_path / "moved", 0)
    assert _seen(paths.old_root) == seen
    (paths.old_root / "etc/motd").write_text("again\n")


async def test_use_is_told(host: DiskHost) -> None:
    paths = await host.box()
    before = await host.disk.used(paths)
    (paths.old_root / "file").write_bytes(os.urandom(5_000_000))
    assert 5_000_000 <= await host.disk.used(paths) - before < 6_000_000


async def test_a_snapshot_is_of_its_moment(host: DiskHost) -> None:
    paths = await host.box()
    _change(paths.old_root)
    seen = _seen(paths.old_root)
    await host.disk.snapshot(paths, "one")
    (paths.old_root / "later").touch()
    (paths.old_root / "lib/code").write_text("later\n")
    await host.disk.snapshot(paths, "one")
    clone = await host.clone("one")
    assert _seen(clone.old_root) == seen
    (clone.old_root / "lib/code").write_text("clone\n")
    assert (paths.old_root / "lib/code").read_text() == "later\n"
    assert host.disk.snapshots() == ["one"]
    again = await host.clone("one")
    assert _seen(again.old_root) == seen


async def test_clones_outlive_their_origin(host: DiskHost) -> None:
    paths = await host.box()
    _change(paths.old_root)
    seen = _seen(paths.old_root)
    await host.disk.snapshot(paths, "one")
    await host.disk.remove(paths)
    clone = await host.clone("one")
    await host.disk.drop_snapshot("one")
    await host.disk.drop_snapshot("one")
    assert host.disk.snapshots() == []
    assert _seen(clone.old_root) == seen
    mounts.unmount(clone.old_root, lazily=False)
    await host.disk.mount(clone, host.image, 0)
    await host.disk.snapshot(clone, "two")
    assert _seen((await host.clone("two")).old_root) == seen


async def test_restoring(host: DiskHost) -> None:
    paths = await host.box()
    _change(paths.old_root)
    seen = _seen(paths.old_root)
    await host.disk.snapshot(paths, "one")
    for _ in range(2):
        (paths.old_root / "later").touch()
        (paths.old_root / "etc/motd").unlink()
        mounts.unmount(paths.old_root, lazily=False)
        await host.disk.restore("one", paths, 0)
        await host.disk.mount(paths, host.image, 0)
        assert _seen(paths.old_root) == seen
    names = {p.name for p in host.disk.upper(paths).parent.parent.iterdir()}
    assert not {name for name in names if name.startswith("layer")} - {"layer"}


async def test_memory_goes_with_the_layer(host: DiskHost) -> None:
    paths = await host.box()
    await host.disk.snapshot(paths, "without")
    _remember(host, paths, b"m" * 300_000)
    await host.disk.snapshot(paths, "with")
    _remember(host, paths, b"later")
    assert not host.disk.snapshot_memory("without").exists()
    clone, plain = await host.clone("with"), await host.clone("without")
    assert (host.disk.memory_dir(clone) / "pages.img").read_bytes() == b"m" * 300_000
    assert not host.disk.memory_dir(plain).exists()
    assert _remembered(host, paths) == b"later"
    mounts.unmount(paths.old_root, lazily=False)
    await host.disk.restore("with", paths, 0)
    assert _remembered(host, paths) == b"m" * 300_000
    await host.disk.restore("without", paths, 0)
    assert not host.disk.memory_dir(paths).exists()


async def test_what_is_cloned_once_stays(host: DiskHost) -> None:
    paths = await host.box()
    _remember(host, paths, b"m")
    await host.disk.snapshot(paths, "one")
    clone = await host.clone("one")
    (clone.old_root / "mine").touch()
    (host.disk.memory_dir(clone) / "pages.img").unlink()
    host.disk.memory_dir(clone).rmdir()
    await host.disk.clone("one", clone, 0)
    assert (clone.old_root / "mine").exists()
    assert not host.disk.memory_dir(clone).exists()


async def test_unknown_snapshots(host: DiskHost) -> None:
    paths = await host.box()
    with pytest.raises(NotFound, match="no snapshot one"):
        await host.disk.clone("one", host.paths(), 0)
    with pytest.raises(NotFound, match="no snapshot one"):
        await host.disk.restore("one", paths, 0)
    with pytest.raises(NotFound, match="no snapshot one"):
        await host.disk.snapshot_used("one")
    await host.disk.drop_snapshot("one")
    assert host.disk.snapshots() == []


async def test_the_size_of_a_snapshot_is_that_of_layer_and_memory(host: DiskHost) -> None:
    paths = await host.box()
    (paths.old_root / "big").write_bytes(os.urandom(1 << 20))
    _remember(host, paths, os.urandom(2 << 20))
    os.sync()
    await host.disk.snapshot(paths, "one")
    os.sync()
    assert 3 << 20 <= await host.disk.snapshot_used("one") < 5 << 20


async def test_work_that_was_cut_short_is_done_again(host: DiskHost) -> None:
    paths = await host.box()
    _remember(host, paths, b"m")
    (paths.old_root / "file").write_text("box\n")
    await host.disk.snapshot(paths, "one")
    # What is there when the host dies in the middle: parts under names that are not final.
    places = (*host.state_dir.glob("snapshots/one"), *host.state_dir.glob("disks/snapshots/one"))
    (place,) = places
    for part in ("two.new", "three.gone"):
        os.rename(place, place.with_name(part))
        await host.disk.snapshot(paths, "one")
    assert host.disk.snapshots() == ["one"]
    await host.disk.snapshot(paths, "two")
    assert not place.with_name("two.new").exists()
    clone = host.paths()
    home, memory = host.disk.home(clone), host.disk.memory_dir(clone)
    home.mkdir(exist_ok=True)
    await host.disk.clone("one", clone, 0)
    os.rename(home / "layer", home / "layer.new")
    memory.rename(memory.with_name("memory.copy"))
    await host.disk.clone("one", clone, 0)
    assert _remembered(host, clone) == b"m"
    await host.disk.sweep()
    assert {p.name for p in place.parent.iterdir()} == {"one", "two"}
    await host.disk.mount(clone, host.image, 0)
    assert (clone.old_root / "file").read_text() == "box\n"
    assert (paths.old_root / "file").read_text() == "box\n"


async def test_hostile_layers(host: DiskHost, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    paths = await host.box()
    top = paths.old_root
    (top / "out").symlink_to(precious)
    (top / "dangling").symlink_to("/nowhere")
    os.mkfifo(top / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(top / "s"))
    (top / "-rf\n\udcff").write_text("name")
    (top / ".upper.links").mkdir()
    _dig(top / "deep")
    _dig(host.disk.memory_dir(paths))
    await host.disk.snapshot(paths, "one")
    clone = await host.clone("one")
    assert os.readlink(clone.old_root / "out") == str(precious)
    assert stat.S_ISFIFO((clone.old_root / "fifo").stat().st_mode)
    assert stat.S_ISSOCK((clone.old_root / "s").stat().st_mode)
    assert (clone.old_root / "-rf\n\udcff").read_text() == "name"
    assert _depth(clone.old_root / "deep") == DEEP
    await host.disk.remove(clone)
    await host.disk.remove(paths)
    await host.disk.drop_snapshot("one")
    assert not host.disk.upper(paths).exists()
    assert not host.disk.memory_dir(clone).exists()
    assert (precious / "file").read_text() == "mine"


def _change(root: Path) -> None:
    """Everything for which an overlay keeps notes: copies, links, whiteouts, opaque directories."""
    (root / "etc/motd").write_text("box\n")
    (root / "etc/gone").unlink()
    os.link(root / "etc/motd", root / "lib/motd")
    (root / "lib/code").chmod(0o700)
    (root / "lib/code").rename(root / "moved")
    (root / "lib/own").write_text("box\n")
    os.link(root / "lib/own", root / "own")
    os.chown(root / "own", 1000, 1001)
    (root / "etc/dir").mkdir()
    (root / "etc/motd").chmod(0o640)
    (root / "link").symlink_to("etc/motd")


def _seen(root: Path) -> dict[str, tuple[object, ...]]:
    """What a box sees of its files."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        facts = (status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns)
        links = 0 if path.is_dir() else status.st_nlink
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(path.relative_to(root))] = (*facts, links, content)
    return found


def _remember(host: DiskHost, paths: BoxPaths, content: bytes) -> None:
    """As it is always done: no file of an image changes, another one takes its name."""
    pages = host.disk.memory_dir(paths) / "pages.img"
    pages.parent.mkdir(exist_ok=True)
    pages.with_suffix(".new").write_bytes(content)
    pages.with_suffix(".new").rename(pages)


def _remembered(host: DiskHost, paths: BoxPaths) -> bytes:
    return (host.disk.memory_dir(paths) / "pages.img").read_bytes()


def _dig(top: Path) -> None:
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def _depth(top: Path) -> int:
    here, depth = os.open(top, os.O_RDONLY), 0
    while os.listdir(here):
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here, depth = below, depth + 1
    os.close(here)
    return depth
