"""What the mount table says about a directory, and what cannot be mounted on."""

from __future__ import annotations

from pathlib import Path

import pytest

from box_guest.fuse import tuning
from box_guest.mount import mountpoint


def test_the_device_of_a_mount() -> None:
    assert tuning.device(Path("/proc")) is not None
    assert tuning.device(Path("/proc/self")) is None


def test_prepare_makes_the_directory(tmp_path: Path) -> None:
    assert mountpoint.prepare(tmp_path / "a/b") == tmp_path / "a/b"
    assert (tmp_path / "a/b").is_dir()


def test_prepare_follows_a_link_to_a_directory(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert mountpoint.prepare(tmp_path / "link") == tmp_path / "real"


def test_prepare_refuses_files_and_living_mounts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file/below", Path("/proc")):
        with pytest.raises(mountpoint.MountpointError):
            mountpoint.prepare(path)


def test_unmounting_what_is_not_mounted_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        mountpoint.unmount(tmp_path, lazy=False)
