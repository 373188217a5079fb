"""Reading mount tables, and mounting overlays at any path."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from boxd.backends import mounts
from boxd.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.plugins.strict_logs import AssertLogs


def test_topmost_mount(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        "2 1 0:5 / /a\\040b rw - tmpfs t rw\n"
        "3 2 0:6 / /a\\040b rw - tmpfs t rw\n"
    )
    assert mounts.device_at(table, "/") == "8:1"
    assert mounts.device_at(table, "/a b") == "0:6"
    assert mounts.device_at(table, "/c") is None
    assert mounts.mount_points(table) == ["/", "/a b", "/a b"]


def test_kind_of_a_file_system(tmp_path: Path) -> None:
    number = tmp_path.stat().st_dev
    table = tmp_path / "mountinfo"
    table.write_text(
        "1 0 8:99 / / rw shared:1 - xfs /dev/sda rw\n"
        f"2 1 {os.major(number)}:{os.minor(number)} / /a rw shared:2 - made-up none rw\n"
    )
    assert mounts.kind_at(tmp_path, table) == "made-up"
    table.write_text("")
    assert mounts.kind_at(tmp_path, table) == ""


@asynccontextmanager
async def _mounts_of_its_own() -> AsyncIterator[int]:
    """A process that has a copy of all mounts of this moment; gives its number."""
    process = await asyncio.create_subprocess_exec(
        *("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo ready; cat"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        await process.communicate(b"")


async def test_a_root_that_others_still_have_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assert_logs: AssertLogs
) -> None:
    monkeypatch.setattr(mounts, "_BUSY_TIMEOUT", 0)
    image, root, upper, work = (tmp_path / name for name in ("i", "r", "u", "w"))
    for directory in (image, root, upper, work):
        directory.mkdir()
    await mounts.mount_overlay(root, image, upper, work)
    try:
        async with _mounts_of_its_own() as pid:
            mounts.unmount(root, lazily=False)
            with (
                assert_logs(rf"{root} is still mounted for process {pid} \(sh\)$"),
                pytest.raises(Unavailable, match="busy; a process with mounts of its own") as told,
            ):
                await mounts.mount_overlay(root, image, upper, work)
            assert str(pid) not in str(told.value)
        monkeypatch.undo()
        await mounts.mount_overlay(root, image, upper, work)
    finally:
        mounts.unmount(root, lazily=True)


async def test_a_root_that_is_mounted_elsewhere_too_has_no_process_to_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assert_logs: AssertLogs
) -> None:
    monkeypatch.setattr(mounts, "_BUSY_TIMEOUT", 0)
    image, root, other, upper, work = (tmp_path / name for name in ("i", "r", "o", "u", "w"))
    for directory in (image, root, other, upper, work):
        directory.mkdir()
    await mounts.mount_overlay(root, image, upper, work)
    try:
        with assert_logs(f"{other} is still mounted for nobody"), pytest.raises(Unavailable):
            await mounts.mount_overlay(other, image, upper, work)
    finally:
        mounts.unmount(root, lazily=True)


async def test_paths_with_separators_can_be_mounted(tmp_path: Path) -> None:
    image, root = tmp_path / "im:age,1\\2", tmp_path / "bo,x:1"
    upper, work = tmp_path / "up,per:1", tmp_path / "wo,rk"
    for directory in (image, root, upper, work):
        directory.mkdir()
    (image / "file").write_text("x")
    try:
        await mounts.mount_overlay(root, image, upper, work)
        await mounts.mount_overlay(root, image, upper, work)
        assert (root / "file").read_text() == "x"
    finally:
        mounts.unmount(root, lazily=False)
    assert not mounts.is_mounted(root)


async def test_a_root_is_mounted_again_while_the_kernel_still_lets_go_of_it(
    tmp_path: Path,
) -> None:
    image, root, upper, work = (tmp_path / name for name in ("image", "root", "upper", "work"))
    for directory in (image, root, upper, work):
        directory.mkdir()
    (image / "file").write_text("x")
    await mounts.mount_overlay(root, image, upper, work)
    reader = (root / "file").open()
    mounts.unmount(root, lazily=True)
    again = asyncio.create_task(mounts.mount_overlay(root, image, upper, work))
    await asyncio.sleep(0)
    assert not again.done()
    reader.close()
    await again
    mounts.unmount(root, lazily=False)
