"""Mounting the roots of boxes at any path."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.backends.host import id_maps, mounts, overlays
from boxd.backends.host.id_ranges import IdRange
from boxd.errors import RootHeld
from boxd.sandbox.id_claims import FIRST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.plugins.strict_logs import AssertLogs


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


def _directories(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Root, image and layer of an overlay."""
    image, root, layer = (tmp_path / name for name in ("i", "r", "l"))
    for directory in (image, layer / "upper", layer / "work"):
        directory.mkdir(parents=True)
    return root, image, layer


async def test_copies_of_all_mounts_do_not_keep_a_root(tmp_path: Path) -> None:
    root, image, layer = _directories(tmp_path)
    await overlays.mount_overlay(root, image, layer)
    try:
        async with _mounts_of_its_own() as pid:
            table = Path(f"/proc/{pid}/mountinfo")
            assert str(root) in mounts.mount_points(table)
            mounts.unmount_everywhere(root)
            assert str(root) not in mounts.mount_points(table)
            await overlays.require_unused(root, image, layer)
            await overlays.mount_overlay(root, image, layer)
    finally:
        mounts.unmount_everywhere(root)
    assert not root.exists()


async def test_a_root_that_only_others_have_is_mounted_again(tmp_path: Path) -> None:
    """As an earlier release left it."""
    root, image, layer = _directories(tmp_path)
    await overlays.mount_overlay(root, image, layer)
    async with _mounts_of_its_own():
        mounts.unmount(root, lazily=False)
        await overlays.mount_overlay(root, image, layer)
        mounts.unmount_everywhere(root)


@pytest.mark.parametrize("how", ["file", "directory"])
async def test_a_process_that_uses_a_root_is_named_to_the_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assert_logs: AssertLogs, how: str
) -> None:
    monkeypatch.setattr(overlays, "_BUSY_TIMEOUT", 0)
    root, image, layer = _directories(tmp_path)
    (image / "file").write_text("x")
    await overlays.mount_overlay(root, image, layer)
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
            await overlays.require_unused(root, image, layer)
        assert str(process.pid) not in str(refusal.value)
    finally:
        await process.communicate(b"")
    monkeypatch.undo()
    await overlays.require_unused(root, image, layer)
    await overlays.mount_overlay(root, image, layer)
    mounts.unmount_everywhere(root)


async def test_a_layer_that_is_mounted_elsewhere_too_is_named_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assert_logs: AssertLogs
) -> None:
    monkeypatch.setattr(overlays, "_BUSY_TIMEOUT", 0)
    root, image, layer = _directories(tmp_path)
    other = tmp_path / "o"
    await overlays.mount_overlay(root, image, layer)
    try:
        with (
            assert_logs(rf"{other}, is still used by process \d+ \(.+\) at {root}"),
            pytest.raises(RootHeld, match="cannot be mounted: Device or resource busy"),
        ):
            await overlays.mount_overlay(other, image, layer)
    finally:
        mounts.unmount_everywhere(root)


async def test_a_layer_that_is_mounted_with_own_ids_is_named_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assert_logs: AssertLogs
) -> None:
    """The mount names another path of the layer, which exists only while it is being mounted."""
    monkeypatch.setattr(overlays, "_BUSY_TIMEOUT", 0)
    root, image, layer = _directories(tmp_path / "id")
    other = tmp_path / "mounts" / "id" / "root"
    by = id_maps.pin(IdRange(FIRST), tmp_path / "users" / "0")
    try:
        await overlays.mount_overlay(other, image, layer, by)
        with (
            assert_logs(rf"is still used by process \d+ \(.+\) at {other}"),
            pytest.raises(RootHeld, match="stopped, but cannot start yet"),
        ):
            await overlays.require_unused(root, image, layer)
    finally:
        mounts.unmount_everywhere(other)
        id_maps.unpin(by.namespace)


async def test_paths_with_separators_can_be_mounted(tmp_path: Path) -> None:
    image, root = tmp_path / "im:age,1\\2", tmp_path / "bo,x:1"
    layer = tmp_path / "la,yer:1"
    for directory in (image, root, layer / "upper", layer / "work"):
        directory.mkdir(parents=True)
    (image / "file").write_text("x")
    try:
        await overlays.mount_overlay(root, image, layer)
        await overlays.mount_overlay(root, image, layer)
        assert (root / "file").read_text() == "x"
    finally:
        mounts.unmount(root, lazily=False)
    assert not mounts.is_mounted(root)


async def test_a_root_is_mounted_again_while_the_kernel_still_lets_go_of_it(
    tmp_path: Path,
) -> None:
    root, image, layer = _directories(tmp_path)
    (image / "file").write_text("x")
    await overlays.mount_overlay(root, image, layer)
    reader = (root / "file").open()
    mounts.unmount(root, lazily=True)
    again = asyncio.create_task(overlays.mount_overlay(root, image, layer))
    await asyncio.sleep(0)
    assert not again.done()
    reader.close()
    await again
    mounts.unmount(root, lazily=False)
