"""PX-1: random operation sequences give the same on the drive and on a filesystem of the kernel."""

from __future__ import annotations

import os
import random
import stat
from typing import TYPE_CHECKING

import pytest

from tests.mount.posix.actor import UTIME_NOW, UTIME_OMIT
from tests.mount.posix.tree import ANN, BOB, ROOT, USERS
from tests.mount.posix.twins import open_flags

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.mount.posix.twins import Twins
    from tests.plugins.figures import Figures

    Call = tuple[object, ...]

NAMES = ("a", "b", "c", "d")
MODES = (0o0, 0o700, 0o644, 0o755, 0o777, 0o1777, 0o2755, 0o2775, 0o4755, 0o6711, 0o7777)
SIZES = (0, 1, 100, 4096, 70_000)
STEPS = 50
LOOK = 10
"""After so many calls everything is compared; errno and result are after each."""


def path(dice: random.Random) -> str:
    """One to three names: some stand for directories, some for files, as it happens."""
    names = [dice.choice(NAMES) for _ in range(dice.choice((1, 1, 2, 2, 3)))]
    return "/".join(names) + dice.choice(("",) * 30 + ("/", "/.", "/.."))


def flags(dice: random.Random) -> int:
    """Flags of open(2)."""
    chosen = dice.choice(("RDONLY", "WRONLY", "RDWR"))
    more = ("CREAT", "EXCL", "TRUNC", "APPEND", "NOFOLLOW", "DIRECTORY", "SYNC")
    return open_flags(chosen, "NONBLOCK", *(one for one in more if dice.random() < 0.3))


def owner(dice: random.Random) -> int:
    """An id, or -1."""
    return dice.choice((-1, -1, 0, ANN.uid, BOB.uid, 65533))


def moment(dice: random.Random) -> int:
    """A time for utimensat(2)."""
    return dice.choice((0, 1, 1_234_567_890_123_456_789, UTIME_NOW, UTIME_OMIT))


CALLS: tuple[Callable[[random.Random], Call], ...] = (
    lambda dice: ("mkdir", path(dice), dice.choice(MODES)),
    lambda dice: ("mkdir", path(dice), dice.choice((0o777, 0o1777))),
    lambda dice: ("rmdir", path(dice)),
    lambda dice: ("unlink", path(dice)),
    lambda dice: ("opened", path(dice), flags(dice), dice.choice(MODES)),
    lambda dice: ("opened", path(dice), open_flags("CREAT", "WRONLY", "NONBLOCK"), 0o666),
    lambda dice: ("written", path(dice), b"x" * dice.choice(SIZES), open_flags(
        "WRONLY", "CREAT", "NONBLOCK", dice.choice(("APPEND", "TRUNC", "SYNC")))),
    lambda dice: ("truncate", path(dice), dice.choice(SIZES)),
    lambda dice: ("rename", path(dice), path(dice)),
    lambda dice: ("rename", path(dice), path(dice)),
    lambda dice: ("rename2", path(dice), path(dice), dice.choice((0, 1, 2, 3, 8))),
    lambda dice: ("link", path(dice), path(dice), dice.choice((0, 0, 0x400))),
    lambda dice: ("symlink", dice.choice((path(dice), "..", ".", "../a")), path(dice)),
    lambda dice: ("mknod", path(dice), dice.choice(MODES) | dice.choice(
        (stat.S_IFIFO, stat.S_IFREG, stat.S_IFCHR, stat.S_IFBLK)), os.makedev(7, 300)),
    lambda dice: ("bind", path(dice)),
    lambda dice: ("chmod", path(dice), dice.choice(MODES)),
    lambda dice: ("chmod", path(dice), dice.choice(MODES)),
    lambda dice: ("chown", path(dice), owner(dice), owner(dice)),
    lambda dice: ("lchown", path(dice), owner(dice), owner(dice)),
    lambda dice: ("utimens", path(dice), moment(dice), moment(dice), dice.choice((0, 0x100))),
    lambda dice: ("utime_null", path(dice)),
    lambda dice: ("readlink", path(dice)),
    lambda dice: ("stat", path(dice)),
    lambda dice: ("lstat", path(dice)),
    lambda dice: ("listdir", path(dice)),
    lambda dice: ("access", path(dice), dice.choice((0, 1, 2, 4, 7))),
    lambda dice: ("setxattr", path(dice), b"user.x", b"v" * dice.choice((0, 1, 500)),
                  dice.choice((0, 1, 2))),
    lambda dice: ("removexattr", path(dice), b"user.x"),
    lambda dice: ("getxattr", path(dice), b"user.x"),
)  # fmt: skip


@pytest.mark.figure("PX-1")
@pytest.mark.timeout(300)
def test_random_sequences(twins: Twins, figures: Figures) -> None:
    for round_number in figures(ci=100, long=5000):
        dice = random.Random(round_number)
        twins.fresh()
        twins.calls.append(f"round {round_number}")
        for number in range(2):
            twins.do("mkdir", NAMES[number], 0o777)
        for step in range(STEPS):
            name, *arguments = dice.choice(CALLS)(dice)
            who = dice.choice((ROOT, ROOT, *USERS))
            twins.do(str(name), *arguments, who=who, look=step % LOOK == LOOK - 1)
