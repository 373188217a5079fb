"""The catalog on disk."""

from __future__ import annotations

import fcntl
from typing import TYPE_CHECKING

import pytest

from boxd.errors import Conflict, Unavailable, UnknownImage
from boxd.images.catalog import Catalog

if TYPE_CHECKING:
    from pathlib import Path


def version(directory: Path, name: str, number: str, *, current: bool) -> Path:
    """A version as a build leaves it."""
    root = directory / name / "versions" / number
    root.mkdir(parents=True)
    if current:
        (directory / name / "rootfs").symlink_to(f"versions/{number}")
    return root


def test_what_is_offered(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    assert catalog.default_image == "debian"
    assert catalog.images()[0].name == "debian"
    assert all(image.description for image in catalog.images())
    assert catalog.default_flavor in catalog.flavors()


def test_an_image_that_is_not_built_names_those_that_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images = tmp_path / "images"
    with pytest.raises(Unavailable, match="built here: none; ask the operator"):
        Catalog(images).rootfs("debian")
    version(images, "debian", "one", current=True)
    with caplog.at_level("INFO"), pytest.raises(Unavailable, match="here: debian; ask") as told:
        Catalog(images).rootfs("python")
    assert str(tmp_path) not in str(told.value)
    assert f"boxd images build python --state-dir {tmp_path}" in caplog.text
    built = {image.name: image.built for image in Catalog(images).images()}
    assert (built["debian"], built["python"]) == (True, False)


def test_an_unknown_flavor_is_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(UnknownImage, match="no flavor 'huge'; known: tiny, small"):
        Catalog(tmp_path).rootfs("debian:huge")
    with pytest.raises(UnknownImage, match="no image 'nope:huge'"):
        Catalog(tmp_path).rootfs("nope:huge")


def test_an_unknown_image_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownImage, match="no image 'nope'"):
        Catalog(tmp_path).rootfs("nope")


def test_the_root_is_the_version_itself(tmp_path: Path) -> None:
    root = version(tmp_path, "debian", "one", current=True)
    catalog = Catalog(tmp_path)
    assert catalog.is_built("debian")
    assert catalog.rootfs("debian") == root


def test_old_versions_go_when_no_box_stands_on_them(tmp_path: Path) -> None:
    current = version(tmp_path, "debian", "three", current=True)
    used = version(tmp_path, "debian", "two", current=False)
    unused = version(tmp_path, "debian", "one", current=False)
    assert Catalog(tmp_path).prune({used}) == [unused]
    assert sorted(p.name for p in current.parent.iterdir()) == ["three", "two"]


async def test_one_build_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "debian").mkdir()
    with (tmp_path / "debian/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Conflict, match="being built already"):
            await Catalog(tmp_path).build("debian", lambda _: None)


async def test_unknown_images_are_not_built(tmp_path: Path) -> None:
    with pytest.raises(UnknownImage):
        await Catalog(tmp_path).build("../evil", lambda _: None)
    assert list(tmp_path.iterdir()) == []
