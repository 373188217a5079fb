"""The interpreter ends when obstore's threads rest.

A thread of obstore hands over the answer of a request and then gives back the Python objects of
it, for which it takes the interpreter's lock once more. When the interpreter is ending by then,
CPython ends the thread, which Rust answers by aborting the process: *measured*, 5 to 8 of 100
processes whose last act was a request died of SIGABRT after they had done all their work.
"""

from __future__ import annotations

import atexit
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

THREADS = "tokio-rt-worker"
"""What obstore's threads call themselves."""
LOOK = 0.002
"""Seconds between two looks, in which nothing here holds the interpreter's lock."""
CALM = 5
"""So many of them in a row must find all asleep: what was given up ends in several steps."""
PATIENCE = 2.0
"""Seconds after which the process ends all the same: a thread is busy with what nobody awaits."""


class Thread(NamedTuple):
    """What the kernel says of a thread."""

    state: str
    """"S": it sleeps."""
    turns: int
    """How often it was on a processor."""


def threads() -> dict[str, Thread]:
    """obstore's threads by their id."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread may end between the looks
            name, _, rest = (task / "stat").read_text().partition(" (")[2].rpartition(") ")
            if name == THREADS:
                turns = int((task / "schedstat").read_text().split()[2])
                found[task.name] = Thread(rest[0], turns)
    return found


def rest() -> None:
    """Returns when all of them slept from look to look for a while, or after PATIENCE.

    One that waits for the interpreter's lock gets it between the looks, and has had a turn.
    """
    end = time.monotonic() + PATIENCE
    before, calm = threads(), 0
    while before and calm < CALM and time.monotonic() < end:
        time.sleep(LOOK)
        now = threads()
        asleep = all(thread.state == "S" for thread in now.values())
        calm = calm + 1 if asleep and now == before else 0
        before = now


def wait_at_end() -> None:
    """Waits when the interpreter ends, however often this is called."""
    atexit.unregister(rest)
    atexit.register(rest)
