"""Programs that people use, at work on the drive."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.drive import MountProcess

SOURCE = Path(os.__file__).parent / "email"
"""A tree that every machine with Python has."""


@pytest.fixture
def wrk(mount: Callable[[], MountProcess]) -> Path:
    """A fresh drive, mounted."""
    return mount().path


def digests(tree: Path) -> dict[str, str]:
    """Digest of each file of a tree."""
    return {
        str(path.relative_to(tree)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in tree.rglob("*")
        if path.is_file()
    }


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Standard output of a program that must succeed."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tar_rsync_and_rm(wrk: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(SOURCE, "tree")
    run("tar", "xf", tmp_path / "a.tar", "-C", wrk)
    assert digests(wrk / "tree") == digests(SOURCE)
    some = next(SOURCE.glob("*.py"))
    assert (wrk / "tree" / some.name).stat().st_mtime == int(some.stat().st_mtime)
    run("tar", "cf", wrk / "b.tar", "-C", wrk, "tree")
    with tarfile.open(wrk / "b.tar") as archive:
        assert len(archive.getnames()) == len(list(SOURCE.rglob("*"))) + 1
    run("rsync", "-a", f"{SOURCE}/", f"{wrk}/synced/")
    assert digests(wrk / "synced") == digests(SOURCE)
    listed = run("rsync", "-ai", f"{SOURCE}/", f"{wrk}/synced/")
    assert listed == "", "a second rsync has nothing to do"
    run("rm", "-rf", wrk / "tree", wrk / "synced")
    assert os.listdir(wrk) == ["b.tar"]


def test_git(wrk: Path) -> None:
    repository = wrk / "repository"
    repository.mkdir()
    for name in ("charset.py", "message.py"):
        (repository / name).write_bytes((SOURCE / name).read_bytes())
    git = ("git", "-c", "user.name=T", "-c", "user.email=t@example.org", "-C", repository)
    run("git", "init", "-q", repository)
    run(*git, "add", ".")
    run(*git, "commit", "-q", "-m", "first")
    (repository / "message.py").write_text("changed\n")
    assert run(*git, "status", "--porcelain") == " M message.py\n"
    run(*git, "commit", "-q", "-a", "-m", "second")
    run("git", "clone", "-q", repository, wrk / "clone")
    assert digests(wrk / "clone")["message.py"] == digests(repository)["message.py"]
    run(*git, "fsck", "--strict")


def test_sqlite(wrk: Path, mount: Callable[[], MountProcess]) -> None:
    with sqlite3.connect(wrk / "db") as database:
        database.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, v TEXT)")
        for number in range(20):
            with database:
                database.execute("INSERT INTO t VALUES (?, ?)", (number, "x" * number))
        database.execute("CREATE INDEX i ON t (v)")
    database.close()
    other = sqlite3.connect(mount().path / "db")
    assert other.execute("SELECT count(*), sum(length(v)) FROM t").fetchone() == (20, 190)
    assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    other.close()


def test_a_program_runs_from_the_drive(wrk: Path) -> None:
    run("cp", "/bin/ls", wrk / "program")
    assert run(wrk / "program", wrk) == "program\n"
    (wrk / "package").mkdir()
    (wrk / "package" / "__init__.py").write_text("value = 42\n")
    code = "import package; print(package.value)"
    assert run("python3", "-c", code, cwd=wrk) == "42\n"
    run("python3", "-m", "compileall", "-q", wrk / "package")
    assert list((wrk / "package" / "__pycache__").glob("*.pyc"))


def test_random_writes_with_fsync(wrk: Path) -> None:
    model = bytearray(1 << 20)
    with (wrk / "f").open("w+b", buffering=0) as file:
        file.truncate(len(model))
        for number in range(60):
            at = number * 7919 * 4096 % len(model)
            data = bytes([number + 1]) * 4096
            os.pwrite(file.fileno(), data, at)
            model[at : at + 4096] = data
            if number % 3 == 0:
                os.fdatasync(file.fileno())
            assert os.pread(file.fileno(), 4096, at) == data
    assert (wrk / "f").read_bytes() == model
