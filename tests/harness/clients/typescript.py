"""The built TypeScript client, and Node.js programs that use it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "clients/typescript"
LIMIT_S = 240


def built_client() -> Path:
    """Return the folder of the built client: `node_modules`, and the compiler `tsc`.

    It is built from the sources of this checkout. A room has no network, so set-up must have
    fetched the compiler.
    """
    done = subprocess.run(
        [ROOT / "scripts/typescript"], capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@dataclass
class Node:
    """Runs Node.js in a folder, with only the variables that a test gives."""

    folder: Path

    def run(self, *words: str, variables: Mapping[str, str] | None = None) -> str:
        """Return the output of a program that must succeed: both streams."""
        fixed = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "LANG": "C.UTF-8"}
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=fixed | dict(variables or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout
