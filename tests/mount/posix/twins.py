"""The same calls on the drive and on the reference: everything a program could see is compared."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any

from tests.mount.posix.tree import ROOT, USERS, Tree, User, next_tick

if TYPE_CHECKING:
    from tests.mount.posix.actor import Picture

COMPARED = ("mode", "nlink", "uid", "gid", "rdev")
"""Fields of every kind of inode; sizes of directories are each filesystem's own."""
TIMES = ("mtime_ns", "ctime_ns")
"""Whether a call moves them is compared. atime follows in the background on the drive."""


class Twins:
    """Both trees. Raises AssertionError, with the calls so far, where they differ."""

    def __init__(self, reference: Tree, drive: Tree) -> None:
        self.trees = (reference, drive)
        self.assertions = 0
        self.calls: list[str] = []
        self._before: tuple[Picture, Picture] | None = None

    def fresh(self) -> None:
        """Goes on in a new directory, and every user with it: a call may shut it to some."""
        for tree in self.trees:
            tree.fresh()
            for user in USERS:
                tree.actor(user)
        self.calls = []
        self._before = None

    def do(self, name: str, *arguments: object, who: User = ROOT, look: bool = True) -> int:
        """Makes a call on both; the errno. `look`: compares what it left as well."""
        if look and self._before is None:
            self.look()
        said = [tree.do(name, *arguments, who=who) for tree in self.trees]
        self.calls.append(f"{who.name}: {name}{arguments} -> {errno.errorcode.get(said[0][0], 0)}")
        self.assertions += 2
        words = [errno.errorcode.get(number, "success") for number, _ in said]
        assert words[0] == words[1], self._report(f"kernel {words[0]}, drive {words[1]}")
        kernel, drive = (plain(result) for _, result in said)
        assert kernel == drive, self._report(f"kernel {kernel}, drive {drive}")
        if look:
            self.look()
        return int(said[0][0])

    def look(self) -> None:
        """Compares the directories with all that is in them, and which times have moved."""
        kernel, drive = (tree.actor(ROOT).ask(("picture", (b".",)))[1] for tree in self.trees)
        assert kernel.keys() == drive.keys(), self._report(f"names {kernel.keys()} {drive.keys()}")
        groups: dict[int, int] = {}
        for path, one in kernel.items():
            other = drive[path]
            fields = COMPARED if stat.S_ISDIR(one["mode"]) else (*COMPARED, "size", "content")
            for field in fields:
                self.assertions += 1
                assert one[field] == other[field], self._report(
                    f"{path!r}: {field} {one[field]!r}, on the drive {other[field]!r}"
                )
            assert groups.setdefault(one["ino"], other["ino"]) == other["ino"], self._report(
                f"{path!r}: hard links differ"
            )
            self._compare_times(path, one, other)
        self._before = (kernel, drive)
        next_tick()

    def _compare_times(self, path: bytes, one: dict[str, Any], other: dict[str, Any]) -> None:
        if self._before is None:
            return
        old_one, old_other = (picture.get(path) for picture in self._before)
        if old_one is None or old_other is None or old_one["ino"] != one["ino"]:
            return
        for field in TIMES:
            moved = (one[field] != old_one[field], other[field] != old_other[field])
            self.assertions += 1
            assert moved[0] == moved[1], self._report(
                f"{path!r}: {field} moved on: kernel {moved[0]}, drive {moved[1]}"
            )

    def _report(self, what: str) -> str:
        return "\n".join([*self.calls[-80:], what])


def plain(result: object) -> object:
    """A result without what may differ: inode numbers, times, sizes of directories."""
    if not isinstance(result, dict):
        return result
    kept = {name: result[name] for name in COMPARED}
    if not stat.S_ISDIR(result["mode"]):
        kept["size"] = result["size"]
    return kept


def open_flags(*names: str) -> int:
    """Flags of open(2) by name."""
    return sum(int(getattr(os, f"O_{name}")) for name in names)
