"""PX-1: every combination of name call, kinds of file and user, compared with the kernel's own."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.mount.posix.tree import ANN, BOB, EVE, KINDS, ROOT
from tests.mount.posix.twins import open_flags

if TYPE_CHECKING:
    from tests.mount.posix.tree import Call
    from tests.mount.posix.twins import Twins

pytestmark = [pytest.mark.figure("PX-1"), pytest.mark.timeout(300)]
STATES = (*KINDS, "absent", "full", "dangling", "loop", "to-dir", "to-file")
"""What a name can stand for: kinds, nothing, a directory with entries, links of several sorts."""
SOME = ("file", "dir", "fifo", "symlink", "absent", "full", "loop")


def place(twins: Twins, state: str, name: str, uid: int = 0) -> None:
    """Puts something in both trees."""
    for tree in twins.trees:
        if state == "full":
            tree.make("dir", name)
            tree.make("file", f"{name}/in")
        elif state == "dangling":
            tree.ok("symlink", "nothing", name)
        elif state == "loop":
            tree.ok("symlink", name, name)
        elif state in ("to-dir", "to-file"):
            tree.make(state[3:], f"{name}-goal")
            tree.ok("symlink", f"{name}-goal", name)
        elif state != "absent":
            tree.make(state, name)
        if uid and state != "absent":
            tree.ok("lchown", name, uid, uid)


@pytest.mark.parametrize("flags", [0, 1, 2])
def test_rename_of_everything_onto_everything(twins: Twins, flags: int) -> None:
    states = SOME if flags else STATES
    for old, new in itertools.product(states, states):
        twins.fresh()
        place(twins, old, "old")
        place(twins, new, "new")
        twins.do("rename2", "old", "new", flags, look=False)
        twins.look()


def test_rename_across_directories(twins: Twins) -> None:
    for old, new, flags in itertools.product(
        ("file", "dir", "full", "symlink"), ("absent", "file", "dir", "full"), (0, 1, 2)
    ):
        twins.fresh()
        for name in ("x", "y", "x/sub"):
            twins.do("mkdir", name, 0o777, look=False)
        place(twins, old, "x/old")
        place(twins, new, "y/new")
        twins.do("rename2", "x/old", "y/new", flags, look=False)
        twins.do("rename2", "x/sub", "y/new", flags, look=False)
        twins.do("rename2", "x", "x/sub/below", flags, look=False)
        twins.do("rename2", "x/sub", "x", flags, look=False)
        twins.look()


@pytest.mark.parametrize("call", ["unlink", "rmdir", "rename", "exchange", "replace", "link"])
def test_who_may_change_names(twins: Twins, call: str) -> None:
    """Directory's mode and owner, entry's owner and kind, and who asks."""
    for mode, above, owner, kind in itertools.product(
        (0o755, 0o777, 0o1777, 0o733), (0, ANN.uid), (ANN.uid, BOB.uid), ("file", "dir")
    ):
        twins.fresh()
        for tree in twins.trees:
            tree.make("dir", "d")
            tree.make(kind, "d/n")
            tree.make(kind, "d/o")
            tree.ok("chown", "d/n", owner, owner)
            tree.ok("chown", "d/o", BOB.uid, BOB.gid)
            tree.ok("chown", "d", above, above)
            tree.ok("chmod", "d", mode)
        calls: dict[str, Call] = {
            "unlink": ("unlink", "d/n"),
            "rmdir": ("rmdir", "d/n"),
            "rename": ("rename", "d/n", "d/m"),
            "exchange": ("rename2", "d/n", "d/o", 2),
            "replace": ("rename", "d/o", "d/n"),
            "link": ("link", "d/n", "d/m"),
        }
        for who in (EVE, BOB, ANN, ROOT):
            twins.do(*calls[call], who=who, look=False)
        twins.look()


def test_open_of_everything(twins: Twins) -> None:
    access = ("RDONLY", "WRONLY", "RDWR", "PATH")
    more: tuple[tuple[str, ...], ...] = (
        (), ("CREAT",), ("CREAT", "EXCL"), ("TRUNC",), ("CREAT", "TRUNC"), ("DIRECTORY",),
        ("NOFOLLOW",), ("CREAT", "NOFOLLOW"), ("CREAT", "DIRECTORY"), ("APPEND", "TRUNC"),
        ("TMPFILE",), ("NOATIME",),
    )  # fmt: skip
    for state in STATES:
        twins.fresh()
        for chosen, extra in itertools.product(access, more):
            place_again(twins, state)
            if "TMPFILE" not in extra:
                twins.do("opened", "n", open_flags(chosen, *extra, "NONBLOCK"), 0o640)


def place_again(twins: Twins, state: str) -> None:
    """What a call may have changed is as it was."""
    for tree in twins.trees:
        number, _ = tree.do("lstat", "n")
        if (number != 0) != (state == "absent"):
            if state == "absent":
                tree.ok("unlink", "n")
            else:
                place(twins, state, "n")
                return
