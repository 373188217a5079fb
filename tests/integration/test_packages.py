"""`scripts/packages` installs wheels whose hashes are locked, and refuses all others."""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
NAME = "greeter-1.0-py3-none-any.whl"
RECORD = "greeter-1.0.dist-info/RECORD"


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    place = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True, timeout=60)
    return place


def test_a_wheel_with_the_locked_hash_is_installed(environment: Path, tmp_path: Path) -> None:
    wheel = _wheel(tmp_path, "hello")
    done = _install(environment, tmp_path, f"greeter==1.0 --hash=sha256:{_digest(wheel)}")
    assert done.returncode == 0, done.stderr
    assert _greeting(environment) == "hello\n"


def test_a_wheel_with_another_hash_is_refused(environment: Path, tmp_path: Path) -> None:
    digest = _digest(_wheel(tmp_path, "hello"))
    _wheel(tmp_path, "stolen")
    done = _install(environment, tmp_path, f"greeter==1.0 --hash=sha256:{digest}")
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert _greeting(environment) == ""


def test_a_requirement_without_a_hash_is_refused(environment: Path, tmp_path: Path) -> None:
    _wheel(tmp_path, "hello")
    done = _install(environment, tmp_path, "greeter==1.0")
    assert done.returncode != 0
    assert "--require-hashes" in done.stderr
    assert _greeting(environment) == ""


def _wheel(directory: Path, greeting: str) -> Path:
    wheel = directory / NAME
    with ZipFile(wheel, "w") as archive:
        archive.writestr("greeter.py", f"print({greeting!r})\n")
        archive.writestr(
            "greeter-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: greeter\nVersion: 1.0\n"
        )
        archive.writestr(
            "greeter-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(RECORD, f"greeter.py,,\n{RECORD},,\n")
    return wheel


def _digest(wheel: Path) -> str:
    return sha256(wheel.read_bytes()).hexdigest()


def _install(environment: Path, index: Path, requirement: str) -> subprocess.CompletedProcess[str]:
    lock = index / "lock.txt"
    lock.write_text(requirement + "\n")
    return subprocess.run(
        [str(ROOT / "scripts/packages"), str(environment), str(lock)],
        env=os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _greeting(environment: Path) -> str:
    python = environment / "bin/python"
    return subprocess.run(
        [str(python), "-m", "greeter"], capture_output=True, text=True, timeout=60, check=False
    ).stdout
