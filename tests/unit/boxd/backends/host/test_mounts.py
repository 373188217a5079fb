"""Reading mount tables, and mounting overlays at any path."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.backends.host import mounts
from boxd.errors import RootHeld

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

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


def _directories(tmp_path: Path) -> tuple[Path, Path, Path, Path]:
    """Root, image, upper and work directory of an overlay."""
    image, root, upper, work = (tmp_path / name for name in ("i", "r", "u", "w"))
    for directory in (image, upper, work):
        directory.mkdir()
    return root, image, upper, work


async def test_copies_of_all_mounts_do_not_keep_a_root(tmp_path: Path) -> None:
    root, *layers = _directories(tmp_path)
    await mounts.mount_overlay(root, *layers)
    try:
        async with _mounts_of_its_own() as pid:
            table = Path(f"/proc/{pid}/mountinfo")
            assert str(root) in mounts.mount_points(table)
            mounts.unmount_everywhere(root)
            assert str(root) not in mounts.mount_points(table)
            await mounts.require_unused(root, *layers)
            await mounts.mount_overlay(root, *layers)
    finally:
        mounts.unmount_everywhere(root)
    assert not root.exists()


async def test_a_root_that_only_others_have_is_mounted_again(tmp_path: Path) -> None:
    """As an earlier release left it."""
    root, *layers = _directories(tmp_path)
    await mounts.mount_overlay(root, *layers)
    async with _mounts_of_its_own():
        mounts.unmount(root, lazily=False)
        await mounts.mount_overlay(root, *layers)
        mounts.unmount_everywhere(root)


@pytest.mark.parametrize("how", ["file", "directory"])
async def test_a_process_that_uses_a_root_is_named_to_the_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assert_logs: AssertLogs, how: str
) -> None:
    monkeypatch.setattr(mounts, "_BUSY_TIMEOUT", 0)
    root, image, *layers = _directories(tmp_path)
    (image / "file").write_text("x")
    await mounts.mount_overlay(root, image, *layers)
    command = {"file": f"exec 7<{root}/file; echo; read x", "directory": "echo; read x"}[how]
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", command),
        cwd=root if how == "directory" else None,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        mounts.unmount_everywhere(root)
        with (
            assert_logs(rf"root of a box, {root}, is still used by process {process.pid} \(sh\)$"),
            pytest.raises(RootHeld, match="stopped, but cannot start yet") as refusal,
        ):
            await mounts.require_unused(root, image, *layers)
        assert str(process.pid) not in str(refusal.value)
    finally:
        await process.communicate(b"")
    monkeypatch.undo()
    await mounts.require_unused(root, image, *layers)
    await mounts.mount_overlay(root, image, *layers)
    mounts.unmount_everywhere(root)


async def test_a_layer_that_is_mounted_elsewhere_too_is_named_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assert_logs: AssertLogs
) -> None:
    monkeypatch.setattr(mounts, "_BUSY_TIMEOUT", 0)
    root, *layers = _directories(tmp_path)
    other = tmp_path / "o"
    await mounts.mount_overlay(root, *layers)
    try:
        with (
            assert_logs(rf"{other}, is still used by process \d+ \(.+\) at {root}"),
            pytest.raises(RootHeld, match="cannot be mounted: Device or resource busy"),
        ):
            await mounts.mount_overlay(other, *layers)
    finally:
        mounts.unmount_everywhere(root)


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
