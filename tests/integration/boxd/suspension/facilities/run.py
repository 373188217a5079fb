"""Runs the programs whose names are its arguments, each in a process of its own."""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path

from tests.integration.boxd.suspension.facilities import (
    confinement,
    descriptors,
    events,
    files,
    mappings,
    memory,
    options,
    processes,
    sockets,
    threads,
    timers,
)
from tests.integration.boxd.suspension.facilities.program import FACILITIES

MODULES = (
    confinement,
    descriptors,
    events,
    files,
    mappings,
    memory,
    options,
    processes,
    sockets,
    threads,
    timers,
)
"""Their import registers the programs."""
RESULTS = Path("/root/results")
GO = RESULTS / "go"


def _run(name: str, results: int) -> None:
    """One program, in a process of its own. `results` leads there from any root."""
    program = FACILITIES[name]()
    try:
        next(program)
        _write(results, f"{name}.ready", str(os.getpid()))
        while not _exists(results):
            time.sleep(0.02)
        verdict = "kept"
        for _ in program:
            verdict = "yields twice"
    except BaseException:
        verdict = traceback.format_exc(limit=-2)
    _write(results, name, verdict)
    os._exit(0)


def _write(directory: int, name: str, text: str) -> None:
    """The file has its name when it is whole."""
    descriptor = os.open(f"{name}.new", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=directory)
    os.write(descriptor, text.encode())
    os.close(descriptor)
    os.rename(f"{name}.new", name, src_dir_fd=directory, dst_dir_fd=directory)


def _exists(results: int) -> bool:
    try:
        os.stat(GO.name, dir_fd=results)
    except FileNotFoundError:
        return False
    return True


def main() -> None:
    """Runs the named programs, and stays their parent."""
    RESULTS.mkdir(exist_ok=True)
    results = os.open(RESULTS, os.O_RDONLY | os.O_DIRECTORY)
    for name in sys.argv[1:]:
        if os.fork() == 0:
            _run(name, results)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
