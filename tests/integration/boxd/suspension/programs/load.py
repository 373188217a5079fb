"""The registry of the programs, and the loop that puts one under load.

A program is a generator. It starts the program, and then checks one more change of its state for
each `next`. It raises if the program lost anything. The loop counts the changes in a file that the
test reads. The load sleeps and wakes in the box of its program, so its connections do, too.
"""

from __future__ import annotations

import json
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import resources
from pathlib import Path

PAUSE = 0.01
"""Seconds between two changes."""
START_TIMEOUT = 90.0
ANSWER_TIMEOUT = 60.0
"""Bounds of waits, in seconds."""
STATE = "/root/state"
"""The file of a load's state."""


class Load:
    """What the test sees of one program: its processes, a version and the count of changes."""

    def __init__(self) -> None:
        self.pids: dict[str, int] = {}
        self.version = ""
        self.count = 0
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *command: str) -> int:
        """Start a process that must not end; return its pid."""
        with Path(f"/root/{name}.log").open("wb") as log:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._children.append(child)
        self.pids[name] = child.pid
        return child.pid

    def check(self) -> None:
        """Raise if a process of the program has ended."""
        for child in self._children:
            if child.poll() is not None:
                raise RuntimeError(f"{child.args!r} ended with status {child.returncode}")
        for name, pid in self.pids.items():
            if not Path(f"/proc/{pid}").exists():
                raise RuntimeError(f"{name} (pid {pid}) has ended")

    def wait(self, action: Callable[[], object]) -> None:
        """Wait until an action raises no OSError. Raise if the program ends before."""

        def condition() -> bool:
            self.check()
            with suppress(OSError):
                action()
                return True
            return False

        until(condition, START_TIMEOUT)

    def write(self, error: str = "") -> None:
        """Replace the file of the state."""
        state = {
            "count": self.count,
            "pids": self.pids,
            "version": self.version,
            "error": error,
        }
        new = Path(f"{STATE}.new")
        new.write_text(json.dumps(state))
        new.rename(STATE)


Program = Callable[[Load], Iterator[None]]
PROGRAMS: dict[str, Program] = {}


def program(name: str) -> Callable[[Program], Program]:
    """Register a program."""

    def register(function: Program) -> Program:
        PROGRAMS[name] = function
        return function

    return register


def source(name: str) -> str:
    """Write a source file of this package below /root; return its path."""
    place = Path("/root") / name
    place.write_bytes(resources.files(__package__).joinpath("sources", name).read_bytes())
    return str(place)


def output(*command: str) -> str:
    """Return the output of a command that must succeed."""
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return (done.stdout or done.stderr).strip()


def until(condition: Callable[[], bool], timeout: float = ANSWER_TIMEOUT) -> None:
    """Wait for a condition."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{condition.__qualname__} does not become true")
        time.sleep(PAUSE)


def run(name: str) -> None:
    """Run one program until it loses something."""
    load = Load()
    try:
        for _ in PROGRAMS[name](load):
            load.check()
            load.count += 1
            load.write()
            time.sleep(PAUSE)
        load.write("the load has ended")
    except BaseException:
        load.write(traceback.format_exc(limit=-3))
        raise
