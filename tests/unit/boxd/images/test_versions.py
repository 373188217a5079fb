"""Versions of images: what is current, what goes, and what must not."""

from __future__ import annotations

import fcntl
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from boxd.errors import Conflict, Unavailable
from boxd.images import versions
from boxd.images.versions import Versions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def made(directory: Path, name: str, *, description: str | None = None) -> Path:
    """A version of image `x`, made the current one."""
    version = directory / "x" / "versions" / name
    version.mkdir(parents=True)
    Versions(directory / "x").publish(version, description)
    return version


def after(count: int, users: dict[Path, list[str]]) -> Callable[[], dict[Path, list[str]]]:
    """Users that are there from the call number `count` on: their boxes were made meanwhile."""
    calls = 0

    def asked() -> dict[Path, list[str]]:
        nonlocal calls
        calls += 1
        return users if calls >= count else {}

    return asked


def test_the_last_one_is_current(tmp_path: Path) -> None:
    found = Versions(tmp_path / "x")
    assert (found.present, found.any, found.imported) == (False, False, None)
    made(tmp_path, "one", description="mine")
    assert (found.present, found.any, found.imported) == (True, True, "mine")
    two = made(tmp_path, "two")
    assert (found.current, found.imported) == (two, None)


def test_new_names_differ(tmp_path: Path) -> None:
    found = Versions(tmp_path / "x")
    assert found.new_path("a") != found.new_path("a")
    assert found.new_path("a").name.startswith("a-")


def test_a_version_in_use_is_not_pruned_even_if_the_box_is_just_made(tmp_path: Path) -> None:
    one, two, three = (made(tmp_path, name) for name in ("one", "two", "three"))
    found = Versions(tmp_path / "x")
    assert found.prune(lambda: {one: ["web"], two: ["db"]}) == []
    assert found.prune(after(2, {one: ["web"], two: ["db"]})) == []
    assert sorted(one.parent.iterdir()) == sorted([one, two, three])
    assert found.prune(lambda: {one: ["web"]}) == [two]


def test_an_image_in_use_is_not_removed(tmp_path: Path) -> None:
    one, two = made(tmp_path, "one"), made(tmp_path, "two", description="mine")
    found = Versions(tmp_path / "x")
    names = [f"b{number}" for number in range(7)]
    with pytest.raises(Conflict, match=r"image 'x' is used by b0, .*, b4 and 2 more; rem"):
        found.remove(lambda: {one: names})
    with pytest.raises(Conflict, match="used by web; remove it first"):
        found.remove(after(2, {two: ["web"]}))
    assert (found.current, found.imported) == (two, "mine")
    assert sorted(one.parent.iterdir()) == sorted([one, two])


def test_when_nobody_can_tell_who_uses_it_nothing_goes(tmp_path: Path) -> None:
    one = made(tmp_path, "one")
    made(tmp_path, "two")

    def unknown() -> dict[Path, list[str]]:
        if one.exists():
            return {}
        raise Unavailable("a record cannot be read")

    for change in (Versions(tmp_path / "x").prune, Versions(tmp_path / "x").remove):
        with pytest.raises(Unavailable, match="cannot be read"):
            change(unknown)
        assert one.is_dir()


def test_nothing_is_left_of_an_image(tmp_path: Path) -> None:
    made(tmp_path, "one", description="mine")
    (tmp_path / "x/versions/.unfinished-1").mkdir()
    found = Versions(tmp_path / "x")
    with found.locked():
        found.remove(dict)
    assert os.listdir(tmp_path) == []
    with found.locked():
        assert (tmp_path / "x/lock").exists()


def test_one_at_a_time(tmp_path: Path) -> None:
    found = Versions(tmp_path / "x")
    with (
        found.locked(),
        pytest.raises(Conflict, match="another process; try again"),
        found.locked(),
    ):
        pass
    with found.locked():
        pass


def test_the_lock_of_a_removed_image_locks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process opened the lock just before the image was removed with it."""
    found = Versions(tmp_path / "x")
    flock = fcntl.flock
    taken: list[int] = []

    def raced(descriptor: int, how: int) -> None:
        if not taken:
            (tmp_path / "x/lock").unlink()
        taken.append(os.fstat(descriptor).st_ino)
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", raced)
    with found.locked():
        assert (tmp_path / "x/lock").stat().st_ino == taken[-1]
    assert len(taken) == 2


def test_what_was_interrupted_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".unfinished-1/etc").mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    versions.remove_unfinished(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]


def test_nothing_is_removed_through_a_mount(tmp_path: Path) -> None:
    inside = tmp_path / ".unfinished-1/dev"
    inside.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "test", inside], check=True)
    try:
        (inside / "precious").touch()
        with pytest.raises(Unavailable, match="unmount it"):
            versions.remove_unfinished(tmp_path)
        assert os.listdir(inside) == ["precious"]
    finally:
        subprocess.run(["umount", inside], check=True)
