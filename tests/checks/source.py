"""The project's source files, for the checks that read them."""

from __future__ import annotations

import ast
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "wrkfs": "wrkfs",
    "objectserver": "objectserver",
    "box_guest": "guest-agent/box_guest",
    "boxd": "daemon/boxd",
    "boxd_client": "clients/python/boxd_client",
}


@cache
def python_files() -> tuple[Path, ...]:
    """Return every Python file of the project, tracked or new."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(ROOT / line for line in done.stdout.splitlines() if (ROOT / line).is_file())


def product_files() -> list[Path]:
    """Return the files of the packages."""
    tops = [ROOT / folder for folder in PACKAGES.values()]
    return [path for path in python_files() if any(path.is_relative_to(top) for top in tops)]


@cache
def tree(path: Path) -> ast.Module:
    """Return the parsed file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def where(path: Path, node: ast.stmt | ast.expr) -> str:
    """Return `path:line` for messages."""
    return f"{path.relative_to(ROOT)}:{node.lineno}"
