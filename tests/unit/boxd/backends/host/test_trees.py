"""Copying and removing trees, with everything that can be in one."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from boxd.backends.host.trees import copy_tree, remove_tree

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


def test_everything_of_a_file_is_kept(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "dir").mkdir(parents=True)
    file = source / "dir/file"
    file.write_bytes(b"content")
    os.setxattr(file, "trusted.overlay.origin", b"\x00\xfb")
    os.setxattr(file, "security.capability", bytes.fromhex("0100000200040000" + "00" * 12))
    os.setxattr(source / "dir", "trusted.overlay.opaque", b"y")
    os.chown(file, 1000, 1001)
    file.chmod(0o6711)
    os.setxattr(file, "security.capability", bytes.fromhex("0100000200040000" + "00" * 12))
    os.utime(file, ns=(1_000_000_001, 2_000_000_002))
    (source / "dir").chmod(0o1777)
    os.utime(source / "dir", ns=(3, 4))
    os.chown(source, 7, 8)
    copy_tree(source, target)
    assert (target / "dir/file").read_bytes() == b"content"
    for part in ("", "dir", "dir/file"):
        one, other = (source / part).lstat(), (target / part).lstat()
        for name in ("st_mode", "st_uid", "st_gid", "st_mtime_ns", "st_size"):
            assert getattr(one, name) == getattr(other, name), (part, name)
        assert _attributes(source / part) == _attributes(target / part)


def test_what_is_no_file_is_kept(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    os.mknod(source / "whiteout", stat.S_IFCHR | 0o000, os.makedev(0, 0))
    os.mknod(source / "block", stat.S_IFBLK | 0o600, os.makedev(7, 200))
    os.mkfifo(source / "fifo", 0o640)
    (source / "link").symlink_to("/etc/passwd")
    os.chown(source / "link", 5, 6, follow_symlinks=False)
    os.setxattr(source / "link", "trusted.overlay.origin", b"o", follow_symlinks=False)
    os.utime(source / "link", ns=(1, 2), follow_symlinks=False)
    copy_tree(source, target)
    for name in ("whiteout", "block", "fifo", "link"):
        one, other = (source / name).lstat(), (target / name).lstat()
        assert (one.st_mode, one.st_rdev, one.st_uid) == (
            other.st_mode,
            other.st_rdev,
            other.st_uid,
        )
        assert one.st_mtime_ns == other.st_mtime_ns
    assert os.readlink(target / "link") == "/etc/passwd"
    assert _attributes(target / "link") == {"trusted.overlay.origin": b"o"}


def test_links_and_holes_are_kept(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "a/b").mkdir(parents=True)
    (source / "one").write_bytes(b"x")
    os.link(source / "one", source / "a/two")
    os.link(source / "one", source / "a/b/three")
    os.mkfifo(source / "pipe")
    os.link(source / "pipe", source / "a/pipe")
    os.link(source / "one", tmp_path / "outside")
    with (source / "sparse").open("wb") as sparse:
        sparse.seek(8 * MIB)
        sparse.write(b"middle")
        sparse.truncate(64 * MIB)
    copy_tree(source, target)
    names = ("one", "a/two", "a/b/three")
    assert len({(target / name).stat().st_ino for name in names}) == 1
    assert (target / "one").stat().st_nlink == 3
    assert (target / "pipe").stat().st_ino == (target / "a/pipe").stat().st_ino
    assert (target / "sparse").read_bytes() == (source / "sparse").read_bytes()
    assert (target / "sparse").stat().st_blocks * 512 < MIB
    assert not list(tmp_path.glob(".*"))


def test_a_copy_needs_a_free_place(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / ".target.links").mkdir()
    (tmp_path / ".target.links/1").touch()
    with pytest.raises(FileExistsError):
        copy_tree(tmp_path / "source", tmp_path / "target")


def test_nothing_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "source/dir").mkdir(parents=True)
    (tmp_path / "source/dir/file").touch()
    before = len(os.listdir("/proc/self/fd"))
    copy_tree(tmp_path / "source", tmp_path / "target")
    remove_tree(tmp_path / "target")
    with pytest.raises(FileNotFoundError):
        copy_tree(tmp_path / "absent", tmp_path / "other")
    assert len(os.listdir("/proc/self/fd")) == before


def test_trees_of_any_shape_are_removed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    for number in range(200):
        (top / f"wide{number}/below").mkdir(parents=True)
        (top / f"wide{number}/below/file").touch()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").touch()
    (top / "out").symlink_to(tmp_path / "precious")
    remove_tree(top)
    remove_tree(top)
    assert [p.name for p in tmp_path.iterdir()] == ["precious"]
    assert (tmp_path / "precious/file").exists()


def test_a_link_in_the_place_of_a_tree_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="Not a directory"):
        remove_tree(tmp_path / "link")
    assert (tmp_path / "precious/file").exists()


def _attributes(path: Path) -> dict[str, bytes]:
    names = os.listxattr(path, follow_symlinks=False)
    return {name: os.getxattr(path, name, follow_symlinks=False) for name in names}
