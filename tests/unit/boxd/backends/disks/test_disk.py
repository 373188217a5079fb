"""Writing into a tree that somebody else owns, and what is common to all disks."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from boxd.backends.disks import disk
from boxd.backends.disks.image_size import ImageSize
from boxd.backends.host import trees
from boxd.backends.host.names import BoxPaths
from boxd.errors import DiskFull, Unavailable

if TYPE_CHECKING:
    from pathlib import Path


def test_new_file(tmp_path: Path) -> None:
    assert disk.write_beneath(tmp_path, "hosts", "a\n")
    assert (tmp_path / "etc/hosts").read_text() == "a\n"
    assert disk.write_beneath(tmp_path, "hosts", "b\n")
    assert (tmp_path / "etc/hosts").read_text() == "b\n"
    assert [p.name for p in (tmp_path / "etc").iterdir()] == ["hosts"]


def test_a_planted_link_is_replaced(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    top = tmp_path / "top"
    (top / "etc").mkdir(parents=True)
    (top / "etc/hosts").symlink_to(precious)
    (top / "etc/.hosts.boxd").symlink_to(precious)
    assert disk.write_beneath(top, "hosts", "a\n")
    assert precious.read_text() == "mine"
    assert not (top / "etc/hosts").is_symlink()


@pytest.mark.parametrize("kind", ["link", "file"])
def test_another_etc_is_left_alone(tmp_path: Path, kind: str) -> None:
    elsewhere, top = tmp_path / "elsewhere", tmp_path / "top"
    elsewhere.mkdir()
    top.mkdir()
    if kind == "link":
        (top / "etc").symlink_to(elsewhere)
    else:
        (top / "etc").touch()
    assert not disk.write_beneath(top, "hosts", "a\n")
    assert list(elsewhere.iterdir()) == []


def test_a_directory_in_the_files_place_stays(tmp_path: Path) -> None:
    (tmp_path / "etc/hosts").mkdir(parents=True)
    assert not disk.write_beneath(tmp_path, "hosts", "a\n")
    assert [p.name for p in (tmp_path / "etc").iterdir()] == ["hosts"]


def test_the_size_of_a_tree_that_is_deeper_than_any_path(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    (top / "file").write_bytes(bytes(100_000))
    flat = disk._allocated(top)
    assert flat >= 100_000
    here = os.open(top, os.O_DIRECTORY)
    for _ in range(100):
        os.mkdir("d" * 100, dir_fd=here)
        below = os.open("d" * 100, os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert disk._allocated(top) >= flat + 100 * 4096
    trees.remove_tree(top)
    assert disk._allocated(top) == 0


async def test_a_disk_without_an_image_says_why(tmp_path: Path) -> None:
    paths = BoxPaths(tmp_path / "box", tmp_path / "mounts")
    plain = disk.PlainDisk(tmp_path / "snapshots")
    await plain.create(paths, 0)
    with pytest.raises(Unavailable, match="No such file or directory"):
        await plain.mount(paths, tmp_path / "absent", 0)


async def test_a_step_that_is_cancelled_ends_first() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def step() -> None:
        begun.set()
        go_on.wait()
        ended.set()

    task = asyncio.create_task(disk.in_thread(step))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
async def test_a_full_disk_is_said(number: int) -> None:
    def step() -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(DiskFull, match="remove boxes or snapshots"):
        await disk.in_thread(step)


def test_space_that_is_left_to_others(tmp_path: Path) -> None:
    disk.require_space(tmp_path)
    with pytest.raises(DiskFull, match="MiB are free, and 2048 MiB are reserved"):
        disk.require_space(tmp_path, 1 << 60)


def test_memory_leaves_space_to_others(tmp_path: Path) -> None:
    plain, paths = disk.PlainDisk(tmp_path / "snapshots"), BoxPaths(tmp_path, tmp_path / "mounts")
    plain.require_memory(paths, ImageSize(1, 0))
    plain.require_room(paths)
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(
        DiskFull, match=r"no room for the memory of the box: it needs \d+ MiB\. \d+ MiB are"
    ):
        plain.require_memory(paths, ImageSize(free, 0))
    with pytest.raises(DiskFull, match=r"it needs 0 MiB and \d+ MiB for its deleted open files"):
        plain.require_memory(paths, ImageSize(1, free))


def test_a_disk_that_becomes_full_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, paths = disk.PlainDisk(tmp_path / "snapshots"), BoxPaths(tmp_path, tmp_path / "mounts")
    monkeypatch.setattr(disk, "floor", lambda _: 1 << 60)
    with pytest.raises(DiskFull, match="MiB are free now, of which"):
        plain.require_room(paths)
