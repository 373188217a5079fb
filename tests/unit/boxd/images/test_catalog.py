"""The catalog on disk."""

from __future__ import annotations

import fcntl
from typing import TYPE_CHECKING

import pytest

from boxd.errors import BadRequest, Conflict, Unavailable, UnknownImage
from boxd.images.catalog import Catalog
from boxd.model.catalog import Flavor, Image
from tests.harness.boxes.tarballs import Tarball

if TYPE_CHECKING:
    from pathlib import Path


def version(directory: Path, name: str, number: str, *, current: bool) -> Path:
    """A version as a build leaves it."""
    root = directory / name / "versions" / number
    root.mkdir(parents=True)
    if current:
        (directory / name / "rootfs").symlink_to(f"versions/{number}")
    return root


def root_of(directory: Path) -> Path:
    """An archive of a root."""
    return Tarball().system().write(directory / "mine.tar")


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
    assert Catalog(tmp_path).prune(lambda: {used: ["web"]}) == [unused]
    assert sorted(p.name for p in current.parent.iterdir()) == ["three", "two"]


def test_what_another_process_changes_is_not_pruned(tmp_path: Path) -> None:
    version(tmp_path, "debian", "two", current=True)
    busy = version(tmp_path, "debian", "one", current=False)
    gone = version(tmp_path, "python", "one", current=False)
    with (tmp_path / "debian/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert Catalog(tmp_path).prune(dict) == [gone]
    assert busy.is_dir()


async def test_one_build_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "debian").mkdir()
    with (tmp_path / "debian/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Conflict, match="being built, imported or removed by another"):
            await Catalog(tmp_path).build("debian", lambda _: None)


async def test_an_imported_image_stands_beside_the_catalog(tmp_path: Path) -> None:
    images = tmp_path / "images"
    catalog = Catalog(images)
    told: list[str] = []
    found = await catalog.import_image("Mine", root_of(tmp_path), told.append)
    assert told[-1] == "image mine: 100 % done"
    assert found.root.parent == images / "mine/versions"
    assert catalog.rootfs("mine") == found.root
    assert catalog.images()[-1] == Image("mine", "Imported from mine.tar", built=True)
    with pytest.raises(UnknownImage, match="no flavor 'huge'"):
        catalog.rootfs("mine:huge")
    with pytest.raises(UnknownImage, match=r"the catalog has debian, .*, mine"):
        catalog.rootfs("nope")
    catalog.remove("mine", dict)
    assert [p.name for p in images.iterdir()] == []
    with pytest.raises(UnknownImage, match="no image 'mine'"):
        catalog.is_built("mine")


async def test_an_import_may_stand_for_a_recipe_until_it_is_built(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    await catalog.import_image("debian", root_of(tmp_path), lambda _: None)
    assert catalog.images()[0].description == "Imported from mine.tar"
    catalog.remove("debian", dict)
    assert catalog.images()[0].description.startswith("Debian 12")
    assert not catalog.is_built("debian")
    with pytest.raises(Conflict, match="not built on this host; nothing to remove"):
        catalog.remove("debian", dict)


@pytest.mark.parametrize(
    ("name", "said"), [("small", "'small' is a flavor"), ("a/b", "image name"), ("cli", "reserved")]
)
async def test_names_that_no_image_gets(tmp_path: Path, name: str, said: str) -> None:
    images = tmp_path / "images"
    with pytest.raises(BadRequest, match=said):
        await Catalog(images).import_image(name, root_of(tmp_path), lambda _: None)
    assert not images.exists()


async def test_a_failed_import_leaves_the_current_version(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    first = await catalog.import_image("mine", root_of(tmp_path), lambda _: None)
    (tmp_path / "bad.tar").write_bytes(b"x" * 600)
    with pytest.raises(BadRequest, match=r"bad\.tar is not a tar archive"):
        await catalog.import_image("mine", tmp_path / "bad.tar", lambda _: None)
    assert catalog.rootfs("mine") == first.root
    assert catalog.images()[-1].description == "Imported from mine.tar"
    assert list(first.root.parent.iterdir()) == [first.root]


def test_the_operators_catalogs(tmp_path: Path) -> None:
    (tmp_path / "images.toml").write_text(
        '[images.tools]\ndescription = "ours"\nbase = "debian"\npackages = ["jq"]\nprograms = []\n'
    )
    (tmp_path / "flavors.toml").write_text(
        'default = "huge"\n[flavors.huge]\ndescription = "all"\ncpus = 16\nmem_mb = 65536\n'
        "disk_mb = 0\npids = 4096\n"
    )
    catalog = Catalog(tmp_path / "images", own=tmp_path)
    assert [image.name for image in catalog.images()] == [
        "debian",
        "python",
        "node",
        "containers",
        "dev",
        "tools",
    ]
    assert catalog.default_flavor == Flavor("huge", "all", 16.0, 65536, 0, 4096)
    assert [flavor.name for flavor in catalog.flavors()][-2:] == ["large", "huge"]


def test_an_image_and_a_flavor_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "images.toml").write_text(
        '[images.small]\ndescription = "x"\npackages = []\nprograms = []\n'
    )
    with pytest.raises(Unavailable, match="'small' is an image and a flavor"):
        Catalog(tmp_path / "images", own=tmp_path)


async def test_unknown_images_are_not_built(tmp_path: Path) -> None:
    with pytest.raises(UnknownImage):
        await Catalog(tmp_path).build("../evil", lambda _: None)
    assert list(tmp_path.iterdir()) == []
