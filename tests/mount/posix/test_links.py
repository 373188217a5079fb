"""link(2), linkat(2), file handles: ways to an inode that is known already."""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING

import pytest

from tests.mount.posix.tree import ANN, BOB, KINDS
from tests.mount.posix.twins import open_flags

if TYPE_CHECKING:
    from tests.mount.posix.tree import Tree

FOLLOW = 0x400
"""AT_SYMLINK_FOLLOW."""


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "dir"])
def test_a_second_name_for_every_kind(tree: Tree, kind: str) -> None:
    tree.make(kind, "a")
    before = tree.lstat("a")
    tree.ok("link", "a", "b")
    tree.has("a", nlink=2)
    tree.has("b", nlink=2, ino=before["ino"], mode=before["mode"], rdev=before["rdev"])
    if kind != "symlink":
        tree.ok("chmod", "b", 0o640)
        tree.has("a", perm=0o640)
    tree.ok("lchown", "a", ANN.uid, BOB.gid)
    tree.has("b", uid=ANN.uid, gid=BOB.gid)
    tree.ok("unlink", "a")
    tree.no(errno.ENOENT, "lstat", "a")
    tree.has("b", nlink=1)
    # Two names of one inode: rename does nothing and succeeds.
    tree.ok("link", "b", "a")
    tree.ok("rename", "a", "b")
    tree.has("a", nlink=2)
    tree.no(errno.EEXIST, "link", "a", "b")


def test_directories_have_one_name(tree: Tree) -> None:
    tree.make("dir", "d")
    tree.no(errno.EPERM, "link", "d", "e")
    tree.no(errno.EPERM, "link", "d", "d/e")
    tree.has("d", nlink=2)
    for number in range(5):
        tree.ok("mkdir", f"d/{number}", 0o755)
        tree.has("d", nlink=3 + number)
    tree.make("file", "d/file")
    tree.ok("rename", "d/0", "moved")
    tree.has("d", nlink=6)
    tree.ok("rename", "d/1", "d/2")
    tree.has("d", nlink=5)
    tree.ok("rename2", "d/2", "d/file", 2)
    tree.has("d", nlink=5)
    tree.ok("rmdir", "d/3")
    tree.has("d", nlink=4)


def test_links_to_symbolic_links(tree: Tree) -> None:
    tree.make("file", "goal")
    tree.ok("symlink", "goal", "s")
    tree.ok("link", "s", "itself")
    tree.ok("link", "s", "followed", FOLLOW)
    assert tree.ok("readlink", "itself") == b"goal"
    tree.has("goal", nlink=2)
    tree.has("followed", kind=stat.S_IFREG)
    tree.ok("symlink", "nothing", "dangling")
    tree.ok("link", "dangling", "dangling2")
    tree.no(errno.ENOENT, "link", "dangling", "no", FOLLOW)


def test_links_of_descriptors(tree: Tree) -> None:
    descriptor = tree.ok("open", "f", open_flags("CREAT", "WRONLY"), 0o600)
    tree.ok("link_fd", descriptor, "g")
    tree.has("g", nlink=2)
    tree.ok("unlink", "f")
    tree.ok("unlink", "g")
    tree.no(errno.ENOENT, "link_fd", descriptor, "h")
    tree.ok("write", descriptor, b"goes on")
    assert tree.ok("fstat", descriptor)["nlink"] == 0
    tree.ok("close", descriptor)


def test_file_handles(tree: Tree) -> None:
    """As a server of this directory (NFS) finds files: by number, whatever their names become."""
    tree.make("dir", "d")
    tree.ok("written", "d/f", b"content", open_flags("CREAT", "WRONLY"))
    for path in ("d", "d/f"):
        handle = tree.ok("handle", path)
        tree.ok("rename", path, "moved")
        descriptor = tree.ok("open_handle", handle, open_flags("RDONLY"))
        assert tree.ok("fstat", descriptor)["ino"] == tree.lstat("moved")["ino"]
        tree.ok("close", descriptor)
        tree.ok("rename", "moved", path)
    handle = tree.ok("handle", "d/f")
    tree.ok("unlink", "d/f")
    if not tree.is_drive:  # it opens what was removed a moment ago: a look-up may be older
        tree.no(errno.ESTALE, "open_handle", handle, open_flags("RDONLY"))
    gone = tree.ok("handle", "d")
    tree.ok("rmdir", "d")
    tree.no(errno.ESTALE, "open_handle", gone, open_flags("RDONLY"))
