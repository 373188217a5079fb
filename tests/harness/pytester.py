"""Runs of pytest on a file of tests, with the plugins of this repository."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLUGINS = ("tests.plugins.no_leaks", "tests.plugins.failed_tests")


def command(directory: Path, *options: str) -> list[str]:
    """Return the command line that runs all tests in a directory; file `failed` lists failures."""
    return [
        *(sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml")),
        *("--rootdir", str(directory), "-p", "no:cacheprovider"),
        *(word for plugin in PLUGINS for word in ("-p", plugin)),
        *("--failed-list", str(directory / "failed"), *options, str(directory)),
    ]


def environment(directory: Path) -> dict[str, str]:
    """Return the environment of such a run, which is independent of the run that starts it."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return mine | {"TMPDIR": str(directory), "PYTHONPATH": str(ROOT)}
