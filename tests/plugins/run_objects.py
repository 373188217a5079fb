"""Tells what a run of tests made on the machine from what other programs make there meanwhile.

In a room of its own (`tests/room`) a run sees nothing else. On the machine itself:

- its processes are its descendants: a run adopts those whose parent has ended;
- its mounts and loop devices have their files below the directory for temporary files or in this
  repository, and not in the state directory of another service;
- its namespaces, interfaces, cgroups and packet filters carry the number of an installation, which
  is not that of another service.
"""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil

from boxd.backends.host.names import LINK_FAMILY
from boxd.config import DEFAULT_STATE_DIR, Config

PR_SET_CHILD_SUBREAPER = 36
REPOSITORY = Path(__file__).parents[2]
_INSTALLATION = re.compile(rf"(?:boxd[-_]|\b{LINK_FAMILY})([0-9a-f]{{6}})\b")
_STATE_DIR = "--state-dir"


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def descendants() -> set[int]:
    """Processes that this run has started."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


@dataclass(frozen=True)
class Others:
    """Services on this machine that the run has not started."""

    state_dirs: frozenset[Path]

    @classmethod
    def now(cls) -> Others:
        """Finds them by their command lines."""
        mine = descendants() | {os.getpid()}
        places = set()
        for process in psutil.process_iter(["pid", "cmdline"]):
            words = process.info["cmdline"] or []
            if process.pid not in mine and any(Path(word).name == "boxd" for word in words[:3]):
                places.add(state_dir(words).resolve())
        return cls(frozenset(places))

    def own(self, item: str) -> bool:
        """Whether an object whose name is a number's or a path's may be of this run."""
        return self.own_path(Path(item)) if item.startswith("/") else self.own_name(item)

    def own_name(self, name: str) -> bool:
        """Of a namespace, interface, cgroup or table: it carries a number, and no other's."""
        numbers = set(_INSTALLATION.findall(name))
        return bool(numbers) and not numbers & {
            Config(state_dir=place).instance for place in self.state_dirs
        }

    def own_path(self, path: Path) -> bool:
        """Of a mountpoint or the file of a loop device: it is where tests write."""
        places = (Path(tempfile.gettempdir()).resolve(), REPOSITORY)
        return any(path.is_relative_to(place) for place in places) and not any(
            path.is_relative_to(place) for place in self.state_dirs
        )


def state_dir(words: list[str]) -> Path:
    """Where a service keeps its state, from its command line."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == _STATE_DIR:
            return Path(following)
        if word.startswith(f"{_STATE_DIR}="):
            return Path(word.partition("=")[2])
    return DEFAULT_STATE_DIR
