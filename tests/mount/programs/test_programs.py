"""Programs that people use, at work on the drive."""

from __future__ import annotations

import os
import tarfile
from typing import TYPE_CHECKING

import pytest

from tests.mount.programs.programs import SOURCE, digests, run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def wrk(mounted_twice: tuple[Path, Path], request: pytest.FixtureRequest) -> Path:
    """A directory of this test."""
    made: Path = mounted_twice[0] / request.node.name
    made.mkdir()
    return made


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
