"""Which times each call moves, of what it works on and of the directories around it."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from tests.mount.posix.actor import UTIME_NOW, UTIME_OMIT
from tests.mount.posix.tree import ANN, BOB, KINDS, next_tick
from tests.mount.posix.twins import open_flags

if TYPE_CHECKING:
    from tests.mount.posix.tree import Call, Tree

BOTH = {"mtime", "ctime"}
NONE: set[str] = set()


def moved(tree: Tree, call: Call, *paths: str) -> list[set[str]]:
    """Which of mtime and ctime a call moves, of each path (which it must not rename)."""
    before = [tree.lstat(path) for path in paths]
    next_tick()
    tree.ok(*call)
    after = [tree.lstat(path) for path in paths]
    return [
        {name for name in ("mtime", "ctime") if old[f"{name}_ns"] != new[f"{name}_ns"]}
        for old, new in zip(before, after, strict=True)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_names_come_and_go(tree: Tree, kind: str) -> None:
    for name in ("d", "e"):
        tree.make("dir", name)
    tree.make(kind, "d/n")
    assert moved(tree, ("rename", "d/n", "d/m"), "d") == [BOTH]
    assert moved(tree, ("rename", "d/m", "e/n"), "d", "e", ".") == [BOTH, BOTH, NONE]
    before = tree.lstat("e/n")
    tree.ok("rename", "e/n", "e/m")
    after = tree.lstat("e/m")
    assert after["ctime_ns"] > before["ctime_ns"]
    assert after["mtime_ns"] == before["mtime_ns"]
    if kind != "dir":
        assert moved(tree, ("link", "e/m", "d/l"), "e/m", "d", "e") == [{"ctime"}, BOTH, NONE]
        assert moved(tree, ("unlink", "d/l"), "e/m", "d", "e") == [{"ctime"}, BOTH, NONE]
        tree.make(kind, "e/x")
        tree.ok("link", "e/x", "e/y")
        assert moved(tree, ("rename", "e/m", "e/x"), "e/y", "e") == [{"ctime"}, BOTH]
        tree.has("e/y", nlink=1)
    removal = "rmdir" if kind == "dir" else "unlink"
    name = "m" if kind == "dir" else "x"
    assert moved(tree, (removal, f"e/{name}"), "e", "d", ".") == [BOTH, NONE, NONE]


def test_making_moves_the_directory_and_sets_three_equal_times(tree: Tree) -> None:
    tree.make("dir", "d")
    calls: tuple[Call, ...] = (
        ("mkdir", "d/dir", 0o755),
        ("mkfifo", "d/fifo", 0o644),
        ("mknod", "d/node", stat.S_IFCHR | 0o600, 5),
        ("symlink", "x", "d/symlink"),
        ("bind", "d/socket"),
        ("opened", "d/file", open_flags("CREAT", "WRONLY"), 0o644),
    )
    for call in calls:
        assert moved(tree, call, "d", ".") == [BOTH, NONE]
    for name in ("dir", "fifo", "node", "symlink", "socket", "file"):
        made = tree.lstat(f"d/{name}")
        assert made["atime_ns"] == made["mtime_ns"] == made["ctime_ns"]
    parent = tree.lstat("d")
    assert parent["mtime_ns"] == parent["ctime_ns"] >= tree.lstat("d/file")["ctime_ns"]


def test_failed_calls_move_nothing(tree: Tree) -> None:
    tree.make("dir", "d")
    tree.make("file", "d/f")
    before = tree.lstat("d"), tree.lstat("d/f")
    calls: tuple[Call, ...] = (
        ("mkdir", "d/f", 0o755),
        ("rmdir", "d"),
        ("unlink", "d"),
        ("rename2", "d/f", "d/f", 1),
        ("rename", "d", "d/x"),
        ("link", "d/f", "d/f"),
        ("chmod", "d/none", 0),
        ("truncate", "d/f", -1),
        ("opened", "d/f", open_flags("CREAT", "EXCL")),
        ("setxattr", "d/f", b"user.a", b"1", 2),
    )
    for call in calls:
        assert tree.do(*call)[0], call
    calls = (("chmod", "d/f", 0), ("truncate", "d/f", 0), ("utimens", "d/f", 1, 1))
    for call in calls:
        assert tree.do(*call, who=BOB)[0], call
    assert (tree.lstat("d"), tree.lstat("d/f")) == before


def test_attributes(tree: Tree) -> None:
    tree.make("file", "f")
    assert moved(tree, ("chmod", "f", 0o600), "f") == [{"ctime"}]
    assert moved(tree, ("chmod", "f", 0o600), "f") == [{"ctime"}]
    assert moved(tree, ("chown", "f", ANN.uid, -1), "f") == [{"ctime"}]
    assert moved(tree, ("chown", "f", -1, -1), "f") == [{"ctime"}]
    assert moved(tree, ("setxattr", "f", b"user.a", b"1"), "f") == [{"ctime"}]
    assert moved(tree, ("removexattr", "f", b"user.a"), "f") == [{"ctime"}]
    assert moved(tree, ("utimens", "f", 5, UTIME_OMIT), "f") == [{"ctime"}]
    assert moved(tree, ("utimens", "f", UTIME_OMIT, 7), "f") == [BOTH]
    assert moved(tree, ("utimens", "f", UTIME_OMIT, UTIME_OMIT), "f") == [NONE]
    tree.has("f", atime_ns=5, mtime_ns=7)
    assert moved(tree, ("truncate", "f", 5), "f") == [BOTH]
    assert moved(tree, ("truncate", "f", 5), "f") == [NONE]
    assert moved(tree, ("truncate", "f", 0), "f") == [BOTH]
    assert moved(tree, ("opened", "f", open_flags("WRONLY", "TRUNC")), "f") == [BOTH]
    assert moved(tree, ("opened", "f", open_flags("WRONLY", "CREAT")), "f") == [NONE]
    assert moved(tree, ("written", "f", b"x"), "f") == [BOTH]
    assert moved(tree, ("written", "f", b""), "f") == [NONE]
    assert moved(tree, ("stat", "f"), "f") == [NONE]
    assert moved(tree, ("access", "f", 4), "f") == [NONE]
    assert moved(tree, ("content", "f"), "f") == [NONE]


@pytest.mark.parametrize("kind", ["file", "dir", "fifo", "socket", "block", "symlink"])
def test_utimensat(tree: Tree, kind: str) -> None:
    tree.make(kind, "n")
    values = (0, 1, 999_999_999, 10**9, 1_234_567_890_123_456_789, 2**31 * 10**9, 2**32 * 10**9 + 7)
    for atime in values:
        for mtime in (values[0], values[-1], atime):
            tree.ok("utimens", "n", atime, mtime, 0x100)
            tree.has("n", atime_ns=atime, mtime_ns=mtime)
    tree.ok("utimens", "n", UTIME_OMIT, 3, 0x100)
    tree.has("n", atime_ns=values[-1], mtime_ns=3)
    before = tree.lstat("n")["ctime_ns"]
    tree.ok("utimens", "n", UTIME_NOW, UTIME_OMIT, 0x100)
    tree.has("n", mtime_ns=3)
    assert tree.lstat("n")["atime_ns"] > before - 10**9
    tree.ok("symlink", "n", "s")
    tree.ok("utimens", "s", 11, 12, 0x100)
    tree.has("s", atime_ns=11, mtime_ns=12)
    if kind != "symlink":
        tree.ok("utimens", "s", 21, 22)
        tree.has("n", atime_ns=21, mtime_ns=22)
        tree.has("s", mtime_ns=12)


def test_times_before_1970(tree: Tree) -> None:
    tree.make("file", "f")
    tree.ok("utimens", "f", -(10**9), -5 * 10**9)
    tree.has("f", atime_ns=-(10**9), mtime_ns=-5 * 10**9)
