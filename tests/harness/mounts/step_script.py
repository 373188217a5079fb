"""A program that changes a tree one call at a time, and each state that the tree may have after a
crash.

The calls are in one order, so each state of the program is a prefix of its calls. `states` has them
all. `answered` is the state after the last answered call, and `durable` the state that an answered
fsync covers.
"""

from __future__ import annotations

import os
import random
import stat
import threading
from typing import TYPE_CHECKING, TypeAlias

from tests.harness.mounts.kill_loop import GONE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Tree: TypeAlias = "dict[str, tuple[str, int, bytes]]"
"""Kind, permission bits, and bytes or target of each path below the root."""

FILE, DIRECTORY, LINK = "file", "directory", "link"
ENTRIES_MAX = 40
SIZES = (10, 3000, 100_000)
"""Bytes of a file; the last one becomes an object."""


def tree_of(root: Path) -> Tree:
    """Return what is in a directory and below it."""
    tree: Tree = {}
    for top, directories, files in os.walk(root):
        for name in directories + files:
            path = os.path.join(top, name)
            status = os.lstat(path)
            mode, shown = stat.S_IMODE(status.st_mode), os.path.relpath(path, root)
            if stat.S_ISLNK(status.st_mode):
                tree[shown] = (LINK, 0, os.readlink(os.fsencode(path)))
            elif stat.S_ISDIR(status.st_mode):
                tree[shown] = (DIRECTORY, mode, b"")
            else:
                with open(path, "rb") as file:
                    tree[shown] = (FILE, mode, file.read())
    return tree


class StepScript:
    """Random calls in one directory, made by one thread until the mount ends or `stop`."""

    def __init__(self, root: Path, seed: int, *, syncs: float = 1.0) -> None:
        """`syncs` is the share of the usual calls of fsync."""
        self.root = root
        self._syncs = syncs
        self.states: list[Tree] = [{}]
        self.answered = 0
        self.durable = 0
        self.steps = 0
        self.trouble: list[str] = []
        self.end = ""
        """The error of the last call, as after the death of the mount."""
        self._random = random.Random(seed)
        self._number = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the calls."""
        self._stop.clear()
        self.end = ""
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def stop(self) -> None:
        """End after the next call."""
        self._stop.set()

    def join(self) -> None:
        """Wait for the end of the thread."""
        assert self._thread is not None
        self._thread.join(60)
        assert not self._thread.is_alive(), "a call hangs"

    def verify(self, first: int) -> list[str]:
        """Return why the tree has none of the states from `first` on; it then is the only state."""
        found = tree_of(self.root)
        wrong = self.trouble
        if found not in self.states[first:]:
            before = found in self.states[:first]
            nearest = self.states[first]
            wrong = [
                *wrong,
                f"{len(self.states)} states, {self.answered} answered, {self.durable} durable; "
                f"the tree is {'an older one' if before else 'none of them'}; "
                f"missing {_some(nearest, found)}, unexpected {_some(found, nearest)}",
            ]
        self.states, self.answered, self.durable, self.trouble = [found], 0, 0, []
        return wrong

    # -- calls --

    def _work(self) -> None:
        verbs: list[Callable[[], object]] = [
            self._create,
            self._create,
            self._replace,
            self._replace,
            self._append,
            self._mkdir,
            self._symlink,
            self._chmod,
            self._rename,
            self._unlink,
            self._rmdir,
            self._sync,
        ]
        try:
            while not self._stop.is_set():
                self._random.choice(verbs)()
                self.steps += 1
        except OSError as error:
            self.end = repr(error)
            if error.errno not in GONE or self._stop.is_set():
                self.trouble.append(repr(error))

    @property
    def _now(self) -> Tree:
        return self.states[-1]

    def _step(self, changes: Tree, call: Callable[[], object], *, less: str = "") -> None:
        """Make a call that sets these paths and removes the path `less`."""
        after = {path: value for path, value in self._now.items() if path != less} | changes
        self.states.append(after)
        call()
        self.answered = len(self.states) - 1

    def _some(self, kind: str) -> str | None:
        paths = sorted(path for path, value in self._now.items() if value[0] == kind)
        return self._random.choice(paths) if paths else None

    def _fresh(self) -> str:
        self._number += 1
        directory = self._some(DIRECTORY) if self._random.random() < 0.7 else None
        return f"{directory or '.'}/n{self._number}".removeprefix("./")

    def _create(self, path: str | None = None) -> str:
        if len(self._now) >= ENTRIES_MAX:
            self._unlink()
        path = path or self._fresh()
        place, descriptors = self.root / path, []
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        self._step(
            {path: (FILE, 0o644, b"")}, lambda: descriptors.append(os.open(place, flags, 0o644))
        )
        self._fill(path, descriptors[0], b"")
        return path

    def _fill(self, path: str, descriptor: int, before: bytes) -> None:
        """Write to an open file and close it."""
        size = self._random.choice(SIZES)
        data = (b"%08d" % self._number * (size // 8 + 1))[:size]
        mode = self._now[path][1]

        def write() -> None:
            try:
                assert os.write(descriptor, data) == size
                if self._random.random() < 0.15 * self._syncs:
                    os.fsync(descriptor)
                    self.durable = len(self.states) - 1
            finally:
                os.close(descriptor)

        self._step({path: (FILE, mode, before + data)}, write)

    def _replace(self) -> None:
        """Write a temporary file and rename it over another one, or to a new name."""
        goal = self._some(FILE) or self._fresh()
        self._number += 1
        temporary = self._create(f"{os.path.dirname(goal)}/t{self._number}".removeprefix("/"))
        value = self._now[temporary]
        self._step(
            {goal: value},
            lambda: os.rename(self.root / temporary, self.root / goal),
            less=temporary,
        )

    def _append(self) -> None:
        path = self._some(FILE)
        if path is not None and len(self._now[path][2]) < 4 * max(SIZES):
            self._number += 1
            descriptor = os.open(self.root / path, os.O_WRONLY | os.O_APPEND)
            self._fill(path, descriptor, self._now[path][2])

    def _mkdir(self) -> None:
        path = self._fresh()
        self._step({path: (DIRECTORY, 0o755, b"")}, lambda: os.mkdir(self.root / path, 0o755))

    def _symlink(self) -> None:
        path = self._fresh()
        target = b"target of " + path.encode()
        self._step({path: (LINK, 0, target)}, lambda: os.symlink(target, self.root / path))

    def _chmod(self) -> None:
        path, mode = self._some(FILE), self._random.choice((0o600, 0o640, 0o644))
        if path is not None:
            changed = (FILE, mode, self._now[path][2])
            self._step({path: changed}, lambda: os.chmod(self.root / path, mode))

    def _rename(self) -> None:
        path, goal = self._some(FILE), self._fresh()
        if path is not None:
            self._step(
                {goal: self._now[path]},
                lambda: os.rename(self.root / path, self.root / goal),
                less=path,
            )

    def _unlink(self) -> None:
        path = self._some(FILE) or self._some(LINK)
        if path is not None:
            self._step({}, lambda: os.unlink(self.root / path), less=path)

    def _rmdir(self) -> None:
        path = self._some(DIRECTORY)
        if path is not None and not any(other.startswith(f"{path}/") for other in self._now):
            self._step({}, lambda: os.rmdir(self.root / path), less=path)

    def _sync(self) -> None:
        """Make everything so far durable, by an fsync of the directory."""
        if self._syncs < 1 and self._random.random() > self._syncs:
            return
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.durable = self.answered


def _some(one: Tree, other: Tree) -> list[str]:
    """Return up to five paths whose value differs in the other tree or that it does not have."""
    return [
        f"{path} ({value[0]}, {len(value[2])} bytes)"
        for path, value in sorted(one.items())
        if other.get(path) != value
    ][:5]
