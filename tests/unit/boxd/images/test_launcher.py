"""The program that starts another one."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from boxd.images.launcher import launcher

if TYPE_CHECKING:
    from pathlib import Path


def made(path: Path, *arguments: str) -> Path:
    """The program as a file."""
    program = path / "program"
    program.write_bytes(launcher(arguments))
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("own", [[], ["a"], ["", "b c", "ü", "-x", "'"], ["z" * 5000] * 20])
def test_own_arguments_follow_the_fixed_ones(tmp_path: Path, own: list[str]) -> None:
    program = made(tmp_path, "/usr/bin/printf", "%s\\0", "first", "sécond")
    done = subprocess.run([program, *own], capture_output=True, check=True)
    assert done.stdout == b"".join(text.encode() + b"\0" for text in ("first", "sécond", *own))


def test_environment_is_passed_on(tmp_path: Path) -> None:
    done = subprocess.run(
        [made(tmp_path, "/usr/bin/env"), "X=1"],
        env={"A": "b", "C": ""},
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"A=b\nC=\nX=1\n"


def test_what_cannot_be_executed_is_127(tmp_path: Path) -> None:
    assert subprocess.run([made(tmp_path, "/no/such/program")], check=False).returncode == 127


def test_exit_status_is_the_programs_own(tmp_path: Path) -> None:
    program = made(tmp_path, "/bin/sh", "-c", "exit 42")
    assert subprocess.run([program], check=False).returncode == 42
