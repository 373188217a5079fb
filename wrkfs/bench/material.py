"""What is unpacked, cloned and installed: made once, kept in a cache beside what is measured."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from wrkfs.bench.place import Material, Size, WorkFailed
from wrkfs.bench.tools import LINES, git, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wrkfs.bench.works import Work

CACHE = Path("~/.cache/wrkfs-bench")
LARGEST = 256 * 1024
"""Source files above this size are left out."""
FROM_TREE = {"untar", "rm_rf"}
FROM_REPOSITORY = {"git_clone_status"}
FROM_WHEELS = {"pip_install"}
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
"""Pure Python, so that the same set serves every machine; the first ones are taken first."""


def prepare(cache: Path, size: Size, works: Sequence[Work]) -> Material:
    """What the works need; what the cache already has costs nothing. WorkFailed, OSError."""
    cache.mkdir(parents=True, exist_ok=True)
    names = {work.name for work in works}
    archive, repository = cache / f"tree-{size.tree}.tar", cache / f"tree-{size.clone}.git"
    files = _archived(archive, size.tree) if names & FROM_TREE else 0
    cloned = 0
    if names & FROM_REPOSITORY:
        source = cache / f"tree-{size.clone}.tar"
        cloned = _archived(source, size.clone)
        if not repository.exists():
            _whole(repository, lambda path: _make_repository(path, source))
    wheels: list[Path] = []
    problem = "not asked for"
    if names & FROM_WHEELS:
        wheels, problem = _wheels(cache / "wheels", WHEELS[: size.wheels])
    return Material(
        archive=str(archive),
        repository=str(repository),
        files=files,
        cloned=cloned,
        wheels=tuple(str(path) for path in wheels),
        wheel_files=sum(len(zipfile.ZipFile(path).namelist()) for path in wheels),
        no_wheels=problem,
    )


def _archived(archive: Path, files: int) -> int:
    """Makes an archive of at most so many files unless it is there; how many it has."""
    if not archive.exists():
        _whole(archive, lambda path: _make_archive(path, files))
    with tarfile.open(archive) as tar:
        return sum(1 for _ in tar)


def _whole(path: Path, make: Callable[[Path], None]) -> None:
    """Makes a file or directory that is there only when it is complete."""
    part = path.with_name(path.name + ".part")
    if part.is_dir():
        shutil.rmtree(part)
    make(part)
    part.rename(path)


def _make_archive(path: Path, files: int) -> None:
    """Sources of the interpreter's own library and of what is installed beside it."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for source, name in islice(_sources(), files):
            member = tarfile.TarInfo(name)
            member.size = source.stat().st_size
            member.mtime = 946684800
            with source.open("rb") as data:
                tar.addfile(member, data)


def _sources() -> Iterator[tuple[Path, str]]:
    """Source files in a fixed order, with their names in the archive."""
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


def _make_repository(path: Path, archive: Path) -> None:
    """A bare repository with one commit that holds the archive's files."""
    tree = path.with_name("checkout.part")
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir()
    run(["tar", "xf", str(archive), "-C", str(tree)])
    git(["init", "--quiet"], tree)
    git(["add", "--all", "--force"], tree)
    git(["commit", "--quiet", "--message", "tree"], tree)
    git(["clone", "--quiet", "--bare", str(tree), str(path)], tree)
    shutil.rmtree(tree)


def _wheels(directory: Path, pins: tuple[str, ...]) -> tuple[list[Path], str]:
    """The wheels, downloaded where they are missing; or why there are none."""
    directory.mkdir(exist_ok=True)
    missing = [pin for pin in pins if not list(directory.glob(_pattern(pin)))]
    if missing:
        words = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", *words, "--dest", str(directory), *missing],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip().splitlines()[-LINES:]
            return [], f"pip download: {' | '.join(said)}"
    found = [next(iter(directory.glob(_pattern(pin))), None) for pin in pins]
    if None in found:
        raise WorkFailed("pip downloaded other wheels than were asked for")
    return [path for path in found if path is not None], ""


def _pattern(pin: str) -> str:
    """The wheel's file name; upper and lower case and underscores vary."""
    name, version = pin.split("==")
    letters = "".join(f"[{c}{c.upper()}]" if c.isalpha() else c for c in name)
    return f"{letters.replace('-', '[-_]')}-{version}-*.whl"
