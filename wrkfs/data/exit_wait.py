"""Delays the exit of the interpreter until obstore's threads are idle.

A thread of obstore delivers the response of a request, and then releases the request's Python
objects. For that it acquires the interpreter's lock again. If the interpreter is exiting by then,
CPython ends the thread, and Rust reacts by aborting the process. *Measured*: 5 to 8 of 100
processes whose last action was a request died of SIGABRT after they had done all their work.
"""

from __future__ import annotations

import atexit
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

THREAD_NAME = "tokio-rt-worker"
"""Name of obstore's threads."""
PAUSE = 0.002
"""Seconds between two checks. The pause releases the interpreter's lock."""
IDLE_CHECKS = 5
"""Number of consecutive checks that must find all threads idle: a cancelled request ends in
several steps."""
PATIENCE = 2.0
"""Seconds after which the process exits even if a thread is busy."""


class Thread(NamedTuple):
    """Data of the kernel about a thread."""

    state: str
    """"S" means that the thread sleeps."""
    turns: int
    """Number of times that the thread was scheduled on a processor."""


def threads() -> dict[str, Thread]:
    """Return obstore's threads by their id."""
    by_id = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread may end during the loop
            name, _, rest = (task / "stat").read_text().partition(" (")[2].rpartition(") ")
            if name == THREAD_NAME:
                turns = int((task / "schedstat").read_text().split()[2])
                by_id[task.name] = Thread(rest[0], turns)
    return by_id


def wait_until_idle() -> None:
    """Wait until all threads slept for IDLE_CHECKS checks, or for PATIENCE.

    A thread that waits for the interpreter's lock acquires it during a pause. The next check then
    sees a higher number of turns.
    """
    end = time.monotonic() + PATIENCE
    before, idle_checks = threads(), 0
    while before and idle_checks < IDLE_CHECKS and time.monotonic() < end:
        time.sleep(PAUSE)
        now = threads()
        asleep = all(thread.state == "S" for thread in now.values())
        idle_checks = idle_checks + 1 if asleep and now == before else 0
        before = now


def wait_at_exit() -> None:
    """Register `wait_until_idle` for the exit of the interpreter. Idempotent."""
    atexit.unregister(wait_until_idle)
    atexit.register(wait_until_idle)
