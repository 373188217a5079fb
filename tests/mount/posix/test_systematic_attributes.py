"""PX-1: every combination of attribute call, kind of file and user, compared with the kernel's."""

from __future__ import annotations

import itertools
import os
import stat
from typing import TYPE_CHECKING

import pytest

from tests.mount.posix.actor import UTIME_NOW, UTIME_OMIT
from tests.mount.posix.tree import ANN, BOB, KINDS, ROOT, USERS
from tests.mount.posix.twins import open_flags

if TYPE_CHECKING:
    from tests.mount.posix.tree import Call
    from tests.mount.posix.twins import Twins

pytestmark = [pytest.mark.figure("PX-1"), pytest.mark.timeout(300)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "symlink"])
def test_permissions(twins: Twins, kind: str) -> None:
    """Every digit of the mode, for owner, group and others, against access and open."""
    twins.fresh()
    for tree in twins.trees:
        tree.make(kind, "n")
        tree.ok("chown", "n", ANN.uid, BOB.gid)
    for digit, who in itertools.product(range(8), USERS):
        for shift in (0, 3, 6):
            twins.do("chmod", "n", digit << shift, look=False)
            for wanted in (1, 2, 4):
                twins.do("access", "n", wanted, who=who, look=False)
            if kind in ("file", "dir", "fifo"):
                twins.do("opened", "n", open_flags("RDONLY", "NONBLOCK"), who=who, look=False)
            if kind == "file":
                twins.do("opened", "n", open_flags("WRONLY"), who=who, look=False)
                twins.do("truncate", "n", 5, who=who, look=False)
            if kind == "dir":
                twins.do("opened", "n/new", open_flags("CREAT", "WRONLY"), who=who, look=False)
                twins.do("unlink", "n/new", who=who, look=False)
                twins.do("stat", "n/.", who=who, look=False)
    twins.look()


@pytest.mark.parametrize("kind", ["file", "dir", "fifo", "symlink"])
def test_chown_by_everybody_to_everybody(twins: Twins, kind: str) -> None:
    ids = (-1, 0, ANN.uid, 65533)
    for mode, who, uid, gid in itertools.product(
        (0o6755, 0o4644, 0o2711), (ROOT, ANN, BOB), ids, ids
    ):
        for tree in twins.trees:
            tree.do("unlink", "n")
            tree.do("rmdir", "n")
            tree.make(kind, "n")
            tree.ok("lchown", "n", ANN.uid, ANN.gid)
            if kind != "symlink":
                tree.ok("chmod", "n", mode)
        twins.do("lchown", "n", uid, gid, who=who, look=False)
        twins.do("lstat", "n")


def test_set_id_bits_go_when_bytes_change(twins: Twins) -> None:
    changes: tuple[Call, ...] = (
        ("written", "n", b"x"),
        ("written", "n", b""),
        ("written", "n", b"x", open_flags("WRONLY", "APPEND")),
        ("truncate", "n", 0),
        ("truncate", "n", 3),
        ("truncate", "n", 9),
        ("opened", "n", open_flags("WRONLY", "TRUNC")),
        ("opened", "n", open_flags("WRONLY", "CREAT", "TRUNC")),
        ("opened", "n", open_flags("RDWR")),
        ("setxattr", "n", b"user.a", b"1"),
        ("removexattr", "n", b"user.a"),
        ("rename", "n", "n"),
        ("link", "n", "m"),
        ("unlink", "m"),
        ("utime_null", "n"),
    )  # fmt: skip
    for mode, who, (name, *arguments) in itertools.product(
        (0o4777, 0o2777, 0o6777, 0o1777), (ROOT, ANN, BOB), changes
    ):
        twins.fresh()
        for tree in twins.trees:
            tree.ok("chmod", ".", 0o777)
            tree.ok("written", "n", b"12345", open_flags("CREAT", "WRONLY"))
            tree.ok("setxattr", "n", b"user.a", b"0")
            tree.ok("chown", "n", ANN.uid, ANN.gid)
            tree.ok("chmod", "n", mode)
        twins.do(str(name), *arguments, who=who)


@pytest.mark.parametrize("mode", [0o777, 0o2777, 0o3777])
def test_who_owns_what_is_made(twins: Twins, mode: int) -> None:
    """setgid directories pass on their group, and the bit to directories."""
    for tree in twins.trees:
        tree.make("dir", "d")
        tree.ok("chown", "d", 0, 65533)
        tree.ok("chmod", "d", mode)
    for who, permissions in itertools.product(USERS, (0o777, 0o2775, 0o6777, 0o7777, 0o2767)):
        name = f"d/{who.name}{permissions:o}"
        twins.do("mkdir", f"{name}d", permissions, who=who, look=False)
        flags = open_flags("CREAT", "RDONLY")
        twins.do("opened", f"{name}f", flags, permissions, who=who, look=False)
        twins.do("mknod", f"{name}r", stat.S_IFREG | permissions, 0, who=who, look=False)
        twins.do("mknod", f"{name}p", stat.S_IFIFO | permissions, 0, who=who, look=False)
        device = os.makedev(8, 1)
        twins.do("mknod", f"{name}b", stat.S_IFBLK | permissions, device, who=who, look=False)
        twins.do("symlink", "x", f"{name}s", who=who, look=False)
        twins.do("bind", f"{name}u", who=who, look=False)
    twins.look()


def test_utimens_by_everybody(twins: Twins) -> None:
    moments = (UTIME_NOW, UTIME_OMIT, 5_000_000_006)
    for kind, mode, who in itertools.product(("file", "dir", "fifo"), (0o644, 0o666), USERS):
        twins.fresh()
        for tree in twins.trees:
            tree.make(kind, "n")
            tree.ok("chown", "n", ANN.uid, ANN.gid)
            tree.ok("chmod", "n", mode)
        for atime, mtime in itertools.product(moments, moments):
            twins.do("utimens", "n", atime, mtime, who=who)
        twins.do("utime_null", "n", who=who)


def test_xattrs_of_everything_by_everybody(twins: Twins) -> None:
    for kind, mode in itertools.product(KINDS, (0o644, 0o600, 0o1777)):
        twins.fresh()
        for tree in twins.trees:
            tree.make(kind, "n")
            tree.ok("lchown", "n", ANN.uid, ANN.gid)
            if kind != "symlink":
                tree.ok("chmod", "n", mode)
        for who, name in itertools.product(USERS, (b"user.a", b"trusted.a", b"user.", b"a")):
            for flags in (2, 0, 1):
                twins.do("setxattr", "n", name, b"value", flags, False, who=who, look=False)
            twins.do("getxattr", "n", name, look=False)
            twins.do("listxattr", "n", False, who=who, look=False)
            twins.do("removexattr", "n", name, who=who, look=False)
        twins.look()
