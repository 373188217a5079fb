"""Workloads with common programs: tar, git, pip, rm."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from wrkfs.bench.place import WorkloadFailed

if TYPE_CHECKING:
    from pathlib import Path

    from wrkfs.bench.place import Place

ERROR_LINES = 3
"""Number of last lines of a program's stderr that an error text contains."""


def untar(place: Place) -> int:
    """Unpack a source tree; return the number of files."""
    folder = place.path("tree")
    folder.mkdir()
    run(["tar", "xf", place.material.archive, "-C", str(folder)])
    return place.material.files


def rm_rf(place: Place) -> int:
    """Remove the source tree; return the number of files."""
    run(["rm", "-rf", str(place.path("tree"))])
    return place.material.files


def git_clone_status(place: Place) -> int:
    """Clone a repository and run `git status`; return the number of files."""
    clone = place.path("clone")
    git(["clone", "--quiet", "--no-hardlinks", place.material.repository, str(clone)], clone.parent)
    if git(["status", "--porcelain"], clone):
        raise WorkloadFailed("git status reports changes in a new clone")
    return place.material.cloned


def pip_install(place: Place) -> int:
    """Install wheels without compiling, to measure the drive; return the number of files."""
    if not place.material.wheels:
        raise WorkloadFailed(f"there are no wheels: {place.material.no_wheels}")
    options = ["--isolated", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    options += ["--disable-pip-version-check", "--root-user-action=ignore"]
    target = ["--target", str(place.path("packages"))]
    run([sys.executable, "-m", "pip", *options, *target, *place.material.wheels])
    return place.material.wheel_files


def prepare_tree(place: Place) -> None:
    """Unpack the tree unless it exists."""
    if not place.path("tree").exists():
        untar(place)


def git(arguments: list[str], directory: Path) -> bytes:
    """Run git without the user's configuration; return its output."""
    environment = {
        "PATH": os.defpath,
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
        "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
    }
    author = ["-c", "user.name=bench", "-c", "user.email=bench@example.org"]
    return run(["git", *author, "-C", str(directory), *arguments], environment)


def run(command: list[str], environment: dict[str, str] | None = None) -> bytes:
    """Run a program; return its output. Raises WorkloadFailed with the last lines of its stderr."""
    try:
        result = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except FileNotFoundError as error:
        raise WorkloadFailed(f"{command[0]} is not installed") from error
    if result.returncode != 0:
        errors = result.stderr.decode(errors="replace").strip().splitlines()[-ERROR_LINES:]
        raise WorkloadFailed(
            f"{command[0]} ended with status {result.returncode}: {' | '.join(errors)}"
        )
    return result.stdout
