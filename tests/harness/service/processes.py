"""The processes of a service: the first one, and those that it forks."""

from __future__ import annotations

import os
from contextlib import suppress

import psutil

from tests.harness.mounts.drive import until

REAP_S = 30.0


def of_service(first: int) -> list[psutil.Process]:
    """Return the first process of a service, the helper and the front."""
    process = psutil.Process(first)
    return [process, *_forked_by(process)]


def reap() -> None:
    """Take the exit status of processes that a killed service had forked, when they have ended.

    A process of tests inherits orphans, and nobody else takes their status.
    """
    until(lambda: not any(map(_remains, _forked_by(psutil.Process()))), REAP_S)


def _forked_by(parent: psutil.Process) -> list[psutil.Process]:
    """Return the children that are a helper or a front; other children may end meanwhile."""
    found = []
    for child in parent.children():
        with suppress(psutil.NoSuchProcess):
            if child.name().startswith("boxd-"):
                found.append(child)
    return found


def _remains(orphan: psutil.Process) -> bool:
    try:
        return os.waitpid(orphan.pid, os.WNOHANG)[0] == 0
    except ChildProcessError:
        return False


def memory_of_service(first: int) -> int:
    """Return the bytes of memory of all processes; those that share a page share its size."""
    return sum(int(process.memory_full_info().pss) for process in of_service(first))


def processor_of_service(first: int) -> float:
    """Return the seconds that all processes have spent on a processor."""
    times = [process.cpu_times() for process in of_service(first)]
    return sum(time.user + time.system for time in times)
