"""Works by the programs that people use: tar, git, pip, rm."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from wrkfs.bench.place import WorkFailed

if TYPE_CHECKING:
    from pathlib import Path

    from wrkfs.bench.place import Place

LINES = 3
"""Last lines of a program's complaints that are told."""


def untar(place: Place) -> int:
    """The files of a source tree."""
    folder = place.path("tree")
    folder.mkdir()
    run(["tar", "xf", place.material.archive, "-C", str(folder)])
    return place.material.files


def rm_rf(place: Place) -> int:
    """The same tree."""
    run(["rm", "-rf", str(place.path("tree"))])
    return place.material.files


def git_clone_status(place: Place) -> int:
    """A tree out of a repository, then `git status`."""
    clone = place.path("clone")
    git(["clone", "--quiet", "--no-hardlinks", place.material.repository, str(clone)], clone.parent)
    if git(["status", "--porcelain"], clone):
        raise WorkFailed("git status finds changes in a fresh clone")
    return place.material.cloned


def pip_install(place: Place) -> int:
    """The files of a set of wheels. Without compiling: it is the drive that is measured."""
    if not place.material.wheels:
        raise WorkFailed(f"there are no wheels: {place.material.no_wheels}")
    words = ["--isolated", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    words += ["--disable-pip-version-check", "--root-user-action=ignore"]
    target = ["--target", str(place.path("packages"))]
    run([sys.executable, "-m", "pip", *words, *target, *place.material.wheels])
    return place.material.wheel_files


def have_tree(place: Place) -> None:
    """Unpacks the tree unless it is there."""
    if not place.path("tree").exists():
        untar(place)


def git(words: list[str], directory: Path) -> bytes:
    """What git prints; it reads nobody's settings."""
    environment = {
        "PATH": os.defpath,
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
        "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
    }
    who = ["-c", "user.name=bench", "-c", "user.email=bench@example.org"]
    return run(["git", *who, "-C", str(directory), *words], environment)


def run(command: list[str], environment: dict[str, str] | None = None) -> bytes:
    """The program's output. WorkFailed with its last words."""
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except FileNotFoundError as error:
        raise WorkFailed(f"{command[0]} is not installed") from error
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-LINES:]
        raise WorkFailed(f"{command[0]} ended with {done.returncode}: {' | '.join(last)}")
    return done.stdout
