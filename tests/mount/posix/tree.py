"""A directory with users who make system calls in it, and what the tests say about them."""

from __future__ import annotations

import ast
import errno
import os
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tests.harness.mounts.drive import until

if TYPE_CHECKING:
    from collections.abc import Callable

Result: TypeAlias = Any
"""What a call gives: a number, bytes, a dictionary of attributes, by its name."""
Call: TypeAlias = tuple[Any, ...]
"""Name of a call and its arguments."""
ACTOR = Path(__file__).with_name("actor.py")


CLOCK_MONOTONIC_COARSE = 6
"""Of `<linux/time.h>`: the time of the last tick, by which the kernel dates what it changes."""


def next_tick() -> None:
    """Waits until the kernel's clock for files has moved on: 4 ms at 250 ticks a second.

    Within one tick two changes may get the same time. Linux makes it finer for an inode whose times
    somebody has read since its last change, but tmpfs dates a directory by the inode that leaves it
    or comes, and what was seen of the one does not count for the other.
    """
    now = time.monotonic_ns()
    until(lambda: time.clock_gettime_ns(CLOCK_MONOTONIC_COARSE) > now)


@dataclass(frozen=True)
class User:
    """Credentials of an actor."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()


ROOT = User("root", 0, 0)
ANN = User("ann", 65534, 65534, (65533,))
"""Member of a second group."""
BOB = User("bob", 65533, 65533)
EVE = User("eve", 65532, 65532)
USERS = (ROOT, ANN, BOB, EVE)


class Actor:
    """One user at work in one directory; a process of its own."""

    def __init__(self, user: User, directory: Path) -> None:
        self.user = user
        ids = (user.uid, user.gid, *user.groups)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(ACTOR), *map(str, ids)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=directory,
        )

    def ask(self, request: object) -> Result:
        """The answer to a request of `actor.py`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{request!r}\n".encode())
        self._process.stdin.flush()
        return ast.literal_eval(self._process.stdout.readline().decode())

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


class Tree:
    """A mounted filesystem in which tests get a fresh directory each.

    Calls name paths relative to that directory. `who` is root unless said.
    """

    def __init__(self, kind: str, path: Path) -> None:
        self.kind = kind
        self.path = path
        self.assertions = 0
        self._actors: dict[User, Actor] = {}
        self._entered: dict[User, str] = {}
        self._directory = "."
        self._number = 0
        for user in USERS:
            self._actors[user] = Actor(user, path)
            self._entered[user] = "."

    @property
    def is_drive(self) -> bool:
        """False for the reference, a filesystem of the kernel."""
        return self.kind == "drive"

    def fresh(self, mode: int = 0o755) -> None:
        """Goes on in a new directory of root's, which every user may search.

        What stands above it looks the same each time.
        """
        self._number += 1
        self._directory = f"d{self._number}/here"
        self.here.parent.mkdir()
        self.here.mkdir()
        self.here.chmod(mode)

    @property
    def here(self) -> Path:
        """The present directory."""
        return self.path / self._directory

    def actor(self, user: User) -> Actor:
        """The user's process, in the present directory."""
        actor = self._actors[user]
        if self._entered[user] != self._directory:
            moves = [("fchdir", (self._top(actor),)), ("chdir", (self._directory,))]
            assert [number for number, _ in actor.ask(moves)] == [0, 0]
            self._entered[user] = self._directory
        return actor

    def _top(self, actor: Actor) -> int:
        """Its descriptor of the top directory, the first that it opened."""
        if self._entered[actor.user] == ".":
            number, top = actor.ask(("open", (b".", os.O_PATH | os.O_DIRECTORY)))
            assert (number, top) == (0, 3)
        return 3

    def do(self, name: str, *arguments: object, who: User = ROOT) -> tuple[int, Any]:
        """(errno, result) of one call; text arguments are paths."""
        raw = tuple(os.fsencode(one) if isinstance(one, str) else one for one in arguments)
        number, result = self.actor(who).ask((name, raw))
        return number, result

    def ok(self, name: str, *arguments: object, who: User = ROOT) -> Result:
        """The result of a call that must succeed."""
        number, result = self.do(name, *arguments, who=who)
        self.assertions += 1
        said = errno.errorcode.get(number, number)
        assert number == 0, f"{self.kind}: {who.name}: {name}{arguments}: {said}, expected success"
        return result

    def no(self, expected: int, name: str, *arguments: object, who: User = ROOT) -> None:
        """A call that must fail with this errno."""
        number, result = self.do(name, *arguments, who=who)
        self.assertions += 1
        said = errno.errorcode.get(number, str(number)) if number else f"success ({result})"
        wanted = errno.errorcode[expected]
        assert number == expected, (
            f"{self.kind}: {who.name}: {name}{arguments}: {said}, expected {wanted}"
        )

    def lstat(self, path: str) -> dict[str, int]:
        """Attributes, by root."""
        found: dict[str, int] = self.ok("lstat", path)
        return found

    def has(self, path: str, **expected: int) -> None:
        """lstat fields of a path; `perm` is the mode without type, `kind` the type."""
        found = self.lstat(path)
        found["perm"], found["kind"] = stat.S_IMODE(found["mode"]), stat.S_IFMT(found["mode"])
        for name, value in expected.items():
            self.assertions += 1
            shown = (oct(found[name]), oct(value)) if name in ("perm", "kind") else None
            assert found[name] == value, (self.kind, path, name, shown or (found[name], value))

    def times(self, path: str, action: Callable[[], object]) -> set[str]:
        """Which of atime, mtime and ctime of a path an action moves."""
        before = self.lstat(path)
        next_tick()
        action()
        after = self.lstat(path)
        names = ("atime", "mtime", "ctime")
        return {name for name in names if before[f"{name}_ns"] != after[f"{name}_ns"]}

    def make(self, kind: str, path: str, who: User = ROOT, mode: int | None = None) -> None:
        """A file of some kind: file, dir, fifo, block, char, socket, symlink.

        Made by root and given to `who`.
        """
        permissions = (0o755 if kind == "dir" else 0o644) if mode is None else mode
        if kind == "file":
            self.ok("opened", path, os.O_CREAT | os.O_EXCL, permissions)
        elif kind == "dir":
            self.ok("mkdir", path, permissions)
        elif kind == "symlink":
            self.ok("symlink", "test", path)
        elif kind == "socket":
            self.ok("bind", path)
            self.ok("chmod", path, permissions)
        else:
            types = {"fifo": stat.S_IFIFO, "block": stat.S_IFBLK, "char": stat.S_IFCHR}
            device = 0 if kind == "fifo" else os.makedev(1, 2)
            self.ok("mknod", path, types[kind] | permissions, device)
        if who is not ROOT:
            self.ok("lchown", path, who.uid, who.gid)
            if kind in ("file", "dir") and permissions & 0o6000:
                self.ok("chmod", path, permissions)

    def remove(self, kind: str, path: str) -> None:
        """Removes what `make` made."""
        self.ok("rmdir" if kind == "dir" else "unlink", path)

    def close(self) -> None:
        """Ends the actors."""
        for actor in self._actors.values():
            actor.close()


KINDS = ("file", "dir", "fifo", "block", "char", "socket", "symlink")
"""All that can stand under a name."""
