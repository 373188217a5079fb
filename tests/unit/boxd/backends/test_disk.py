"""Writing into a tree that somebody else owns, and reading mount tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from boxd.backends import disk
from boxd.backends.hostnames import BoxPaths
from boxd.backends.run import run
from boxd.errors import Unavailable


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


def test_topmost_mount(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        "2 1 0:5 / /a\\040b rw - tmpfs t rw\n"
        "3 2 0:6 / /a\\040b rw - tmpfs t rw\n"
    )
    assert disk.device_at(table, "/") == "8:1"
    assert disk.device_at(table, "/a b") == "0:6"
    assert disk.device_at(table, "/c") is None


async def test_a_disk_without_an_image_says_why(tmp_path: Path) -> None:
    paths = BoxPaths(tmp_path / "box")
    paths.directory.mkdir()
    plain = disk.PlainDisk()
    assert not plain.limits_size()
    await plain.create(paths)
    with pytest.raises(Unavailable, match="No such file or directory"):
        await plain.mount(paths, tmp_path / "absent")
    (disk.upper(paths) / "link").symlink_to("/")
    (disk.upper(paths) / "sub").mkdir()
    (disk.upper(paths) / "sub/file").write_bytes(b"x" * 100_000)
    assert 100_000 <= await plain.used(paths) < 1_000_000
    await plain.remove(paths)
    await plain.remove(paths)
    assert list(paths.directory.iterdir()) == []
    assert await plain.used(paths) == 0


async def test_paths_with_separators_can_be_mounted(tmp_path: Path) -> None:
    image = tmp_path / "im:age,1\\2"
    image.mkdir()
    (image / "file").write_text("x")
    paths = BoxPaths(tmp_path / "bo,x:1")
    paths.directory.mkdir()
    plain = disk.PlainDisk()
    await plain.create(paths)
    try:
        await plain.mount(paths, image)
        await plain.mount(paths, image)
        assert (paths.root / "file").read_text() == "x"
    finally:
        await plain.unmount(paths)
    assert not disk.is_mounted(paths.root)


@pytest.mark.parametrize("change", ["without an index", "the image", "the layer"])
async def test_a_layer_outlives_what_its_handles_named(tmp_path: Path, change: str) -> None:
    """It was made without an index, or image or layer are copies of what they were."""
    image, paths = tmp_path / "image", BoxPaths(tmp_path / "box")
    image.mkdir()
    (image / "file").write_text("x")
    paths.directory.mkdir()
    plain = disk.PlainDisk()
    await plain.create(paths)
    if change == "without an index":
        options = f"lowerdir={image},upperdir={disk.upper(paths)},workdir={paths.layer / 'work'}"
        await run(
            "mount", "-t", "overlay", "overlay", "-o", f"{options},index=off", str(paths.root)
        )
    try:
        await plain.mount(paths, image)
        with (paths.root / "file").open("a") as file:
            file.write("y")
        await plain.unmount(paths)
        for place in {"the image": [image], "the layer": [paths.layer]}.get(change, []):
            await run("cp", "-a", str(place), f"{place}.copy")
            disk.remove_tree(place)
            Path(f"{place}.copy").rename(place)
        await plain.mount(paths, image)
        assert (paths.root / "file").read_text() == "xy"
    finally:
        await plain.unmount(paths)
