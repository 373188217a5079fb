"""Mounts that map ids, and the user namespaces that they use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.backends.host import id_maps, mounts, overlays
from boxd.backends.host.id_ranges import IdRange
from boxd.errors import Unavailable
from boxd.sandbox.id_claims import FIRST

if TYPE_CHECKING:
    from collections.abc import Iterator

IDS = IdRange(FIRST)


@pytest.fixture
def by(tmp_path: Path) -> Iterator[id_maps.IdMap]:
    """Yield a map with its pinned namespace."""
    place = tmp_path / "users/0"
    yield id_maps.pin(IDS, place)
    id_maps.unpin(place)
    assert not place.exists()


def owner(path: Path) -> tuple[int, int]:
    """Return the ids of a file as the host sees them."""
    status = path.lstat()
    return status.st_uid, status.st_gid


def test_a_namespace_is_pinned_once(by: id_maps.IdMap) -> None:
    before = by.namespace.stat().st_ino
    assert id_maps.pin(IDS, by.namespace) == by
    assert by.namespace.stat().st_ino == before


def test_a_mount_shows_other_ids_and_stores_the_same(tmp_path: Path, by: id_maps.IdMap) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "file").touch()
    os.chown(source / "file", 7, 8)
    id_maps.bind(source, target, by)
    try:
        assert owner(target / "file") == (FIRST + 7, FIRST + 8)
        with id_maps.acting_as(by):
            (target / "new").touch()
        assert owner(source / "new") == (0, 0)
        with pytest.raises(OSError, match="Value too large"):
            (target / "other").touch()
    finally:
        id_maps.unbind(target)
    assert not target.exists()
    (source / "after").touch()
    assert owner(source / "after") == (0, 0)


def test_a_read_only_mount_protects_its_source(tmp_path: Path, by: id_maps.IdMap) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "file").touch()
    id_maps.bind(source, target, by, read_only=True)
    try:
        with pytest.raises(OSError, match="Read-only"):
            (target / "file").unlink()
    finally:
        id_maps.unbind(target)


async def test_an_overlay_stores_the_ids_that_the_box_sees(
    tmp_path: Path, by: id_maps.IdMap
) -> None:
    root, image, layer = (tmp_path / name for name in ("root", "image", "layer"))
    for directory in (image, layer / "upper", layer / "work"):
        directory.mkdir(parents=True)
    for name in ("kept", "changed"):
        (image / name).write_text("image")
        os.chown(image / name, 33, 65_535)
    await overlays.mount_overlay(root, image, layer, by)
    try:
        assert owner(root / "kept") == (FIRST + 33, FIRST + 65_535)
        (root / "changed").write_text("box")
        os.chown(root / "changed", FIRST + 1000, FIRST + 1001)
    finally:
        mounts.unmount_everywhere(root)
    assert owner(layer / "upper/changed") == (1000, 1001)
    assert (image / "changed").read_text() == "image"
    assert [path.name for path in tmp_path.glob("mapped-*")] == []
    # The same layer without a map, as root of the host sees it.
    await overlays.mount_overlay(root, image, layer)
    try:
        assert owner(root / "changed") == (1000, 1001)
        assert owner(root / "kept") == (33, 65_535)
    finally:
        mounts.unmount_everywhere(root)


def test_a_host_that_cannot_map_ids_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="the file system of /proc cannot map ids"):
        id_maps.require(IDS, tmp_path / "check", [tmp_path, Path("/proc")])
    assert not (tmp_path / "check").exists()


def test_a_host_without_user_namespaces_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_maps, "_HELPER", ("sh", "-c", "echo no such namespace >&2; exit 1"))
    with pytest.raises(Unavailable, match="no user namespaces for boxes: no such namespace"):
        id_maps.require(IDS, tmp_path / "check", [tmp_path])
    assert not (tmp_path / "check").exists()


def test_the_range_of_a_process() -> None:
    assert id_maps.of_process(os.getpid()) is None
