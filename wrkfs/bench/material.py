"""Archives, repositories and wheels for the workloads. A cache outside the targets stores them."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from wrkfs.bench.packages import PACKAGES, prepare_packages
from wrkfs.bench.place import Material, Project, Size, WorkloadFailed
from wrkfs.bench.project import create_archive, create_repository
from wrkfs.bench.tools import ERROR_LINES, git, run
from wrkfs.bench.workloads import REAL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wrkfs.bench.workloads import Workload

CACHE = Path("~/.cache/wrkfs-bench")
LARGEST = 256 * 1024
"""Maximum size of source files in the archive, in bytes."""
FROM_TREE = {"untar", "rm_rf"}
FROM_REPOSITORY = {"git_clone_status"}
FROM_ALL_PARTS = {"real_find_cold", "real_grep_cold", "real_grep_warm", "real_rm_rf"}
"""Real works that use the parts of all other real works."""
FROM_WHEELS = {"pip_install", "real_pip_install"} | FROM_ALL_PARTS
FROM_PACKAGES = {"real_npm_install"} | FROM_ALL_PARTS
WHEELS = (
    "rich==15.0.0",
    "pygments==2.21.0",
    "fastapi==0.165.0",
    "starlette==1.10.0",
    "boto3==1.40.61",
    "urllib3==2.8.0",
    "click==8.5.1",
    "anyio==4.16.0",
    "attrs==26.1.0",
    "packaging==26.3",
    "pluggy==1.7.0",
    "idna==3.20",
    "httpx==0.28.1",
    "httpcore==1.0.9",
    "h11==0.16.0",
    "jmespath==1.1.0",
    "markdown-it-py==4.3.0",
    "mdurl==0.1.2",
    "certifi==2026.10.18",
    "six==1.17.0",
)
"""Pure Python wheels, which install on every machine. A smaller set uses the first ones."""


def prepare(cache: Path, size: Size, workloads: Sequence[Workload]) -> Material:
    """Create the missing material for the workloads, and return it.

    Raises WorkloadFailed, OSError.
    """
    cache.mkdir(parents=True, exist_ok=True)
    names = {workload.name for workload in workloads}
    archive, repository = cache / f"tree-{size.tree}.tar", cache / f"tree-{size.clone}.git"
    files = _prepare_archive(archive, size.tree) if names & FROM_TREE else 0
    cloned = 0
    if names & FROM_REPOSITORY:
        source = cache / f"tree-{size.clone}.tar"
        cloned = _prepare_archive(source, size.clone)
        if not repository.exists():
            _create_atomically(repository, lambda path: _create_repository(path, source))
    wheels: list[Path] = []
    problem = "no selected workload uses them"
    if names & FROM_WHEELS:
        wheels, problem = _prepare_wheels(cache / "wheels", WHEELS[: size.wheels])
    return Material(
        archive=str(archive),
        repository=str(repository),
        files=files,
        cloned=cloned,
        wheels=tuple(str(path) for path in wheels),
        wheel_files=sum(len(zipfile.ZipFile(path).namelist()) for path in wheels),
        no_wheels=problem,
        project=_prepare_project(cache, size, names) if names & REAL else None,
    )


def _prepare_project(cache: Path, size: Size, names: set[str]) -> Project:
    """Create the missing material of the real works. Without npm there are no packages."""
    archive = cache / f"project-{size.project}.tar.gz"
    repository = cache / f"project-{size.project}.git"
    if not archive.exists():
        _create_atomically(archive, lambda path: create_archive(path, size.project))
    if not repository.exists():
        _create_atomically(repository, lambda path: create_repository(path, size.project))
    project = Project(str(archive), str(repository), size.project)
    if not names & FROM_PACKAGES:
        return replace(project, no_packages="no selected workload uses them")
    pins = PACKAGES[: size.packages]
    name = hashlib.sha256(" ".join(pins).encode()).hexdigest()[:12]
    directory = cache / f"npm-{name}"
    try:
        count = prepare_packages(directory, pins)
    except WorkloadFailed as error:
        return replace(project, no_packages=str(error))
    return replace(project, packages=str(directory), package_files=count)


def _prepare_archive(archive: Path, files: int) -> int:
    """Create an archive of at most `files` files unless it exists; return their number."""
    if not archive.exists():
        _create_atomically(archive, lambda path: _create_archive(path, files))
    with tarfile.open(archive) as tar:
        return sum(1 for _ in tar)


def _create_atomically(path: Path, create: Callable[[Path], None]) -> None:
    """Create a file or directory under another name, and rename it when it is complete."""
    part = path.with_name(path.name + ".part")
    if part.is_dir():
        shutil.rmtree(part)
    create(part)
    part.rename(path)


def _create_archive(path: Path, files: int) -> None:
    """Archive sources of the interpreter's library and of the installed packages."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for source, name in islice(_sources(), files):
            member = tarfile.TarInfo(name)
            member.size = source.stat().st_size
            member.mtime = 946684800
            with source.open("rb") as data:
                tar.addfile(member, data)


def _sources() -> Iterator[tuple[Path, str]]:
    """Yield source files in a fixed order, with their names in the archive."""
    paths = sysconfig.get_paths()
    library, packages = Path(paths["stdlib"]), Path(paths["purelib"])
    for root in (library, packages):
        for path in sorted(root.rglob("*")):
            inner = path.relative_to(root)
            if root is library and inner.parts[0] in {"site-packages", "dist-packages"}:
                continue
            if "__pycache__" in inner.parts or path.is_symlink() or not path.is_file():
                continue
            if path.suffix != ".so" and path.stat().st_size <= LARGEST:
                yield path, f"{root.name}/{inner}"


def _create_repository(path: Path, archive: Path) -> None:
    """Create a bare repository with one commit of the archive's files."""
    tree = path.with_name("checkout.part")
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir()
    run(["tar", "xf", str(archive), "-C", str(tree)])
    git(["init", "--quiet"], tree)
    git(["add", "--all", "--force"], tree)
    git(["commit", "--quiet", "--message", "tree"], tree)
    git(["clone", "--quiet", "--bare", str(tree), str(path)], tree)
    shutil.rmtree(tree)


def _prepare_wheels(directory: Path, pins: tuple[str, ...]) -> tuple[list[Path], str]:
    """Download missing wheels. Return all wheels and "", or no wheels and an error text."""
    directory.mkdir(exist_ok=True)
    missing = [pin for pin in pins if not list(directory.glob(_pattern(pin)))]
    if missing:
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
        result = subprocess.run(
            [sys.executable, "-m", "pip", "download", *options, "--dest", str(directory), *missing],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if result.returncode != 0:
            errors = result.stderr.decode(errors="replace").strip().splitlines()[-ERROR_LINES:]
            return [], f"pip download: {' | '.join(errors)}"
    paths = [next(iter(directory.glob(_pattern(pin))), None) for pin in pins]
    if None in paths:
        raise WorkloadFailed("pip downloaded wheels of other versions than requested")
    return [path for path in paths if path is not None], ""


def _pattern(pin: str) -> str:
    """Return a pattern for a wheel's file name, in upper or lower case, with `-` or `_`."""
    name, version = pin.split("==")
    letters = "".join(f"[{c}{c.upper()}]" if c.isalpha() else c for c in name)
    return f"{letters.replace('-', '[-_]')}-{version}-*.whl"
