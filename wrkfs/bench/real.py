"""Works on a real project: clone, unpack, install, use a database, search, and remove all of it.

Each work has a directory of its own below `real`. The searches and the removal include all parts
for which there is material.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from wrkfs.bench import packages
from wrkfs.bench.place import WorkloadFailed
from wrkfs.bench.tools import git, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from wrkfs.bench.place import Place, Project

CLONE, TREE, APP, VENV, DATABASE = "clone", "tree", "app", "venv", "database"
PATTERN = "return"
"""The text that grep looks for. It occurs in files of every part."""
ROW = "x" * 100


def git_clone(place: Place) -> int:
    """Clone the repository as from a server: git receives a pack; return the number of files."""
    project = _project(place)
    url = Path(project.repository).absolute().as_uri()
    git(["clone", "--quiet", url, str(_path(place, CLONE))], _path(place))
    return project.files


def untar(place: Place) -> int:
    """Unpack the archive; return the number of files."""
    project = _project(place)
    folder = _path(place, TREE)
    folder.mkdir()
    run(["tar", "xzf", project.archive, "-C", str(folder)])
    return project.files


def npm_install(place: Place) -> int:
    """Install packages with npm from its cache; return the number of files."""
    project = _project(place)
    if not project.packages:
        raise WorkloadFailed(f"there are no packages for npm: {project.no_packages}")
    source, folder = Path(project.packages), _path(place, APP)
    folder.mkdir()
    for name in (packages.MANIFEST, packages.LOCK):
        shutil.copyfile(source / name, folder / name)
    packages.install(folder, source / packages.CACHE, offline=True)
    return project.package_files


def pip_install(place: Place) -> int:
    """Create a virtual environment and install wheels there; return the number of their files."""
    if not place.material.wheels:
        raise WorkloadFailed(f"there are no wheels: {place.material.no_wheels}")
    folder = _path(place, VENV)
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    pip = [sys.executable, "-m", "pip", "--isolated", "--python", str(folder / "bin/python")]
    options = ["--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
    run([*pip, "install", *options, "--root-user-action=ignore", *place.material.wheels])
    return place.material.wheel_files


def transactions(place: Place) -> int:
    """Commit small transactions to a SQLite database with a rollback journal; return the count."""
    folder = _path(place, DATABASE)
    folder.mkdir()
    try:
        with closing(sqlite3.connect(folder / "data.sqlite", isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("CREATE TABLE item (number INTEGER PRIMARY KEY, text TEXT)")
            for number in range(place.size.transactions):
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("INSERT INTO item VALUES (?, ?)", (number, ROW))
                connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise WorkloadFailed(f"SQLite: {error}") from error
    return place.size.transactions


def find(place: Place) -> int:
    """List all parts with find; return the number of files."""
    count = len(run(["find", str(_path(place))]).splitlines())
    expected = _files(place)
    if count < expected:
        raise WorkloadFailed(f"find lists {count} entries; there are at least {expected} files")
    return expected


def grep(place: Place) -> int:
    """Search all parts with grep, to the end of each file; return the number of files."""
    run(["grep", "-rc", PATTERN, str(_path(place))])
    return _files(place)


def git_status(place: Place) -> int:
    """Run `git status` in the clone; return the number of files."""
    if git(["status", "--porcelain"], _path(place, CLONE)):
        raise WorkloadFailed("git status reports changes in a new clone")
    return _project(place).files


def rm_rf(place: Place) -> int:
    """Remove all parts; return the number of files."""
    run(["rm", "-rf", str(_path(place))])
    return _files(place)


def prepare_root(place: Place) -> None:
    """Create the directory of the parts."""
    _path(place).mkdir(exist_ok=True)


def prepare_clone(place: Place) -> None:
    """Clone the repository unless the clone exists."""
    prepare_root(place)
    if not _path(place, CLONE).exists():
        git_clone(place)


def prepare_parts(place: Place) -> None:
    """Create the missing parts."""
    prepare_root(place)
    for name, (create, _) in _parts(place).items():
        if not _path(place, name).exists():
            create(place)


def _parts(place: Place) -> dict[str, tuple[Callable[[Place], int], int]]:
    """Return, by name, how to create each part that has material, and the number of its files."""
    project = _project(place)
    parts: dict[str, tuple[Callable[[Place], int], int]] = {
        CLONE: (git_clone, project.files),
        TREE: (untar, project.files),
        DATABASE: (transactions, 1),
    }
    if project.packages:
        parts[APP] = (npm_install, project.package_files)
    if place.material.wheels:
        parts[VENV] = (pip_install, place.material.wheel_files)
    return parts


def _files(place: Place) -> int:
    return sum(count for _, count in _parts(place).values())


def _path(place: Place, part: str = "") -> Path:
    return place.path("real") / part


def _project(place: Place) -> Project:
    if place.material.project is None:
        raise WorkloadFailed("there is no material for real works")
    return place.material.project
