"""What every call that takes a path says to paths that lead nowhere."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

import pytest

from tests.mount.posix.tree import ANN, BOB, KINDS, ROOT
from tests.mount.posix.twins import open_flags

if TYPE_CHECKING:
    from tests.mount.posix.tree import Call, Tree


def makers(path: str) -> dict[str, Call]:
    """Calls that make the name `path`."""
    return {
        "mkdir": ("mkdir", path, 0o755),
        "mkfifo": ("mkfifo", path, 0o644),
        "mknod": ("mknod", path, stat.S_IFREG | 0o644, 0),
        "block": ("mknod", path, stat.S_IFBLK | 0o644, os.makedev(1, 2)),
        "char": ("mknod", path, stat.S_IFCHR | 0o644, os.makedev(1, 2)),
        "symlink": ("symlink", "test", path),
        "link": ("link", "source", path),
        "create": ("opened", path, open_flags("CREAT", "WRONLY"), 0o644),
        "exclusive": ("opened", path, open_flags("CREAT", "EXCL", "RDWR"), 0o644),
        "rename": ("rename", "source", path),
        "noreplace": ("rename2", "source", path, 1),
    }


def users(path: str) -> dict[str, Call]:
    """Calls that need the name `path`."""
    return {
        "open": ("opened", path, open_flags("RDONLY", "NONBLOCK")),
        "truncating": ("opened", path, open_flags("WRONLY", "TRUNC", "NONBLOCK")),
        "truncate": ("truncate", path, 123),
        "chmod": ("chmod", path, 0o642),
        "chown": ("chown", path, 0, 0),
        "lchown": ("lchown", path, 0, 0),
        "stat": ("stat", path),
        "lstat": ("lstat", path),
        "access": ("access", path, os.F_OK),
        "unlink": ("unlink", path),
        "rmdir": ("rmdir", path),
        "rename": ("rename", path, "other"),
        "exchange": ("rename2", path, "source", 2),
        "link": ("link", path, "other"),
        "readlink": ("readlink", path),
        "utimens": ("utimens", path, 5, 6),
        "utime": ("utime_null", path),
        "listdir": ("listdir", path),
        "statvfs": ("statvfs", path),
        "getxattr": ("getxattr", path, b"user.a"),
        "setxattr": ("setxattr", path, b"user.a", b"1"),
        "removexattr": ("removexattr", path, b"user.a"),
        "chdir": ("chdir", path),
        "execute": ("execute", path),
    }


def every(path: str) -> list[Call]:
    """All calls on one path."""
    return [*makers(path).values(), *users(path).values()]


@pytest.fixture(autouse=True)
def source(tree: Tree) -> None:
    """What link and rename take."""
    tree.make("file", "source")


def again(tree: Tree) -> None:
    """A rename has taken it."""
    if tree.do("lstat", "source")[0]:
        tree.make("file", "source")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("dir", "symlink")])
def test_enotdir_when_something_else_stands_before_the_last_name(tree: Tree, kind: str) -> None:
    tree.make(kind, "n")
    for call in every("n/x"):
        tree.no(errno.ENOTDIR, *call)
    for name in ("open", "stat", "chmod", "truncate", "unlink", "listdir", "chdir"):
        call = users("n/")[name]
        tree.no(errno.ENOTDIR, *call)


def test_enoent_when_there_is_nothing(tree: Tree) -> None:
    tree.ok("symlink", "nowhere", "dangling")
    for call in [*every("no/x"), *every("dangling/x"), *users("no").values()]:
        tree.no(errno.ENOENT, *call)
    follows = ("open", "truncate", "chmod", "chown", "stat", "access", "utimens", "listdir")
    for name in follows:
        call = users("dangling")[name]
        tree.no(errno.ENOENT, *call)
    for call in every(""):
        tree.no(errno.ENOENT, *call)


def test_names_of_255_bytes_and_not_of_256(tree: Tree) -> None:
    longest = "x" * 255
    for call in makers(longest).values():
        again(tree)
        tree.ok(*call)
        assert longest.encode() in tree.ok("listdir", ".")
        tree.ok("rmdir" if call[0] == "mkdir" else "unlink", longest)
    again(tree)
    for call in [*every("x" * 256), *every("x" * 256 + "/y"), *every("x" * 4000)]:
        tree.no(errno.ENAMETOOLONG, *call)


def test_paths_of_4095_bytes_and_not_of_4096(tree: Tree) -> None:
    deep = "/".join(["d" * 250] * 16)
    for depth in range(16):
        tree.ok("mkdir", "/".join(["d" * 250] * (depth + 1)), 0o755)
    longest = f"{deep}/{'x' * (4095 - len(deep) - 1)}"
    assert len(longest) == 4095
    for call in makers(longest).values():
        again(tree)
        tree.ok(*call)
        tree.ok("lstat", longest)
        tree.ok("rmdir" if call[0] == "mkdir" else "unlink", longest)
    again(tree)
    for call in every(longest + "x"):
        tree.no(errno.ENAMETOOLONG, *call)


def test_symbolic_link_targets(tree: Tree) -> None:
    for length in (1, 255, 256, 4095):
        target = ("t" * 200 + "/") * 20 + "u" * 100
        tree.ok("symlink", target[:length], f"s{length}")
        assert tree.ok("readlink", f"s{length}") == target[:length].encode()
        tree.has(f"s{length}", size=length, perm=0o777, nlink=1)
    tree.no(errno.ENAMETOOLONG, "symlink", "t" * 4096, "s")
    tree.no(errno.ENOENT, "symlink", "", "s")


def test_eloop(tree: Tree) -> None:
    tree.ok("symlink", "two", "one")
    tree.ok("symlink", "one", "two")
    for call in [*every("one/x"), *every("two/x/y")]:
        tree.no(errno.ELOOP, *call)
    for name in ("open", "truncate", "chmod", "chown", "stat", "utimens", "listdir", "getxattr"):
        call = users("one")[name]
        tree.no(errno.ELOOP, *call)
    tree.no(errno.ELOOP, "opened", "one", open_flags("CREAT", "WRONLY"))
    tree.make("file", "goal")
    tree.ok("symlink", "goal", "link0")
    for number in range(41):
        tree.ok("symlink", f"link{number}", f"link{number + 1}")
    tree.ok("stat", "link39")
    tree.no(errno.ELOOP, "stat", "link40")
    tree.no(errno.ELOOP, "opened", "link0", open_flags("RDONLY", "NOFOLLOW"))


@pytest.mark.parametrize("mode", [0o666, 0o000])
def test_eacces_without_search_permission(tree: Tree, mode: int) -> None:
    tree.make("dir", "d", ANN)
    tree.make("file", "d/f", ANN)
    tree.make("dir", "d/s", ANN)
    tree.ok("chmod", ".", 0o777)
    tree.ok("lchown", "source", ANN.uid, ANN.gid)
    tree.ok("chmod", "d", mode)
    for who in (ANN, BOB):
        for call in [*every("d/new"), *users("d/f").values(), *every("d/s/x")]:
            tree.no(errno.EACCES, *call, who=who)
    tree.ok("lstat", "d/f", who=ROOT)


@pytest.mark.parametrize("mode", [0o555, 0o500, 0o577])
def test_eacces_without_write_permission(tree: Tree, mode: int) -> None:
    tree.make("dir", "d", ANN)
    for kind in KINDS:
        tree.make(kind, f"d/{kind}", ANN)
    tree.ok("lchown", "source", ANN.uid, ANN.gid)
    tree.ok("chmod", ".", 0o777)
    tree.ok("chmod", "d", mode)
    for name, call in makers("d/new").items():
        if name not in ("block", "char"):
            tree.no(errno.EACCES, *call, who=ANN)
    for kind in KINDS:
        removal = "rmdir" if kind == "dir" else "unlink"
        tree.no(errno.EACCES, removal, f"d/{kind}", who=ANN)
        tree.no(errno.EACCES, "rename", f"d/{kind}", "elsewhere", who=ANN)
    for device in ("block", "char"):
        tree.no(errno.EPERM, *makers("new")[device], who=ANN)


def test_eexist_whatever_stands_there(tree: Tree) -> None:
    for kind in KINDS:
        tree.make(kind, f"n-{kind}")
        for name, call in makers(f"n-{kind}").items():
            if name not in ("create", "rename"):
                tree.no(errno.EEXIST, *call)


def test_dots(tree: Tree) -> None:
    tree.make("dir", "d")
    for path in (".", "d/.", "..", "d/.."):
        last_is_parent = path.endswith("..")
        tree.no(errno.ENOTEMPTY if last_is_parent else errno.EINVAL, "rmdir", path)
        tree.no(errno.EBUSY, "rename", path, "other")
        tree.no(errno.EBUSY, "rename", "d", path)
        tree.no(errno.EEXIST, "mkdir", path, 0o755)
        tree.no(errno.EISDIR, "unlink", path)
        tree.ok("stat", path)


def test_of_another_filesystem(tree: Tree) -> None:
    tree.no(errno.EXDEV, "link", "source", "/dev/new")
    tree.no(errno.EXDEV, "rename", "source", "/dev/new")
    tree.no(errno.EXDEV, "rename", "/etc/hostname", "x")
