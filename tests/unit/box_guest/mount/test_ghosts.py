"""What is answered for inodes that lost their name."""

from __future__ import annotations

import stat

from box_guest.mount.ghosts import GHOSTS_MAX, SEEN_MAX, UnlinkedInodes
from wrkfs.types import Attr, Ino


def attr(ino: int, nlink: int = 2) -> Attr:
    return Attr(Ino(ino), stat.S_IFDIR | 0o755, nlink, 0, 0, 0, 0, 1, 1, 1, 0)


def test_a_removed_name_leaves_its_attributes() -> None:
    ghosts = UnlinkedInodes()
    assert ghosts.saw(1, b"a", attr(5)) == attr(5)
    assert ghosts.find(Ino(5)) is None
    ghosts.removed(1, b"a")
    found = ghosts.find(Ino(5))
    assert found is not None
    assert (found.nlink, found.mode, found.mtime_ns) == (0, stat.S_IFDIR | 0o755, 1)
    assert found.ctime_ns > 1
    ghosts.forget(5)
    assert ghosts.find(Ino(5)) is None


def test_names_that_nobody_looked_up_leave_nothing() -> None:
    ghosts = UnlinkedInodes()
    ghosts.removed(1, b"a")
    ghosts.saw(1, b"b", attr(6))
    ghosts.removed(2, b"b")
    assert ghosts.find(Ino(6)) is None


def test_memory_is_bounded() -> None:
    ghosts = UnlinkedInodes()
    for number in range(1, 2 * GHOSTS_MAX + 1):
        ghosts.saw(1, b"%d" % number, attr(number))
        if number > SEEN_MAX:
            ghosts.removed(1, b"%d" % (number - SEEN_MAX + 1))
    known = [number for number in range(2 * GHOSTS_MAX) if ghosts.find(Ino(number))]
    assert 0 < len(known) <= GHOSTS_MAX
    ghosts.removed(1, b"1")
    assert ghosts.find(Ino(1)) is None
