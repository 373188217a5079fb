"""Helpers of the tests that run programs on the drive."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

SOURCE = Path(os.__file__).parent / "email"
"""A tree that every machine with Python has."""


def run(*command: str | Path, cwd: Path | None = None, given: str | None = None) -> str:
    """Standard output of a program that must succeed."""
    done = subprocess.run(
        command, cwd=cwd, input=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
    return done.stdout


def digests(tree: Path) -> dict[str, str]:
    """Digest of each file of a tree."""
    return {
        str(path.relative_to(tree)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in tree.rglob("*")
        if path.is_file()
    }
