"""The program of JuiceFS that a benchmark compares with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.peers import juicefs
from benchmarks.peers.juicefs import (
    FROM_MODULE,
    FROM_PACKAGE,
    MEND,
    JuiceFS,
    Program,
    Volume,
    choose,
    parse_version,
    read_version,
)
from benchmarks.peers.mounted import NotHere
from wrkfs.config import StoreConfig

SCRIPT = Path(juicefs.__file__).parents[2] / "scripts/juicefs"
BUILT, PACKAGED = Path("/built/juicefs"), Path("/packaged/juicefs")
NEW, OLD = Program("new", "1.4.1", FROM_MODULE), Program("old", "0.14.2", FROM_PACKAGE)


def version(program: Path) -> str:
    """The version of each of the programs, if both run."""
    return "1.4.1" if program == BUILT else "0.14.2"


def only_packaged(program: Path) -> str:
    """The version, if the program is not built."""
    if program == BUILT:
        raise NotHere("juicefs does not run: No such file or directory")
    return version(program)


def test_the_built_program_is_preferred() -> None:
    assert choose(BUILT, PACKAGED, version) == Program(str(BUILT), "1.4.1", FROM_MODULE)
    assert choose(BUILT, None, version).note == ""


def test_the_fall_back_names_the_reason() -> None:
    program = choose(BUILT, PACKAGED, only_packaged)
    assert (program.path, program.version) == (str(PACKAGED), "0.14.2")
    assert program.source == FROM_PACKAGE
    assert "No such file" in program.note
    assert "run scripts/juicefs" in program.note


def test_without_any_program_the_peer_is_missing() -> None:
    with pytest.raises(NotHere, match="run scripts/juicefs; the Python package"):
        choose(BUILT, None, only_packaged)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("juicefs version 1.4.1+unknown\n", "1.4.1"),
        ("juicefs version 1.4.1+2026-07-30.0b90c7d\n", "1.4.1"),
        ("juicefs version 0.14.2 (2021-09-05 03f36d6)\n", "0.14.2"),
    ],
)
def test_a_version_is_read(text: str, expected: str) -> None:
    assert parse_version(text) == expected


def test_other_output_is_no_version() -> None:
    with pytest.raises(NotHere, match="reports no version: 'segmentation'"):
        parse_version("segmentation\n")


def test_a_program_that_does_not_run_is_missing(tmp_path: Path) -> None:
    with pytest.raises(NotHere, match="juicefs does not run: No such file"):
        read_version(tmp_path / "juicefs")
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\necho juicefs version 1.2.3+x\n")
    script.chmod(0o755)
    assert read_version(script) == "1.2.3"


def test_each_version_gets_its_own_address_and_preparation() -> None:
    database = "postgres://juicefs:secret@127.0.0.1:5432/juicefs"
    assert NEW.address(database) == f"{database}?sslmode=disable"
    assert OLD.address(database) == f"postgres://{database}?sslmode=disable"
    assert NEW.statements == ()
    assert OLD.statements == MEND


def test_the_mount_uses_the_program_of_its_volume(tmp_path: Path) -> None:
    store = StoreConfig("http://127.0.0.1:1", "bucket", "prefix", "region", "key", "secret")
    mount = JuiceFS(Volume(NEW, "postgres://x", store), tmp_path, "second")
    assert list(mount.command())[:2] == ["new", "mount"]
    assert list(mount.command())[-2:] == ["postgres://x", str(tmp_path / "second")]
    assert "secret" not in " ".join(mount.command())


def test_a_build_without_the_module_fails_and_leaves_nothing(tmp_path: Path) -> None:
    offline = {**os.environ, "GOPROXY": "off", "GOFLAGS": "", "PIP_NO_INDEX": "1"}
    done = subprocess.run(
        [str(SCRIPT), str(tmp_path)],
        env=offline,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "juicefs: JuiceFS 1.4.1 is not built: " in done.stderr
    assert os.listdir(tmp_path) == ["lock"]


def test_the_script_builds_where_the_benchmark_looks() -> None:
    root = SCRIPT.parents[1]
    assert root / ".build/juicefs/juicefs" == juicefs.BUILT
    assert "(default: .build/juicefs)" in SCRIPT.read_text()
