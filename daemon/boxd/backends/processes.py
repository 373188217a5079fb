"""The init processes of boxes, seen from the host."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.errors import BoxdError, Conflict

if TYPE_CHECKING:
    from collections.abc import Iterator

EXEC_TIMEOUT = 10.0
KILL_TIMEOUT = 10.0
_RIGHTS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
_RUNTIME_COMM = "runc:["
"""What runc calls its processes until they become the box's init."""


@contextmanager
def init_process(pid_file: Path, cgroup: str) -> Iterator[tuple[int, int]]:
    """Pid and pidfd of a box's init; Conflict when it does not run.

    The descriptor is taken first and the process looked at afterwards, so a pid that has been given
    to another process is never taken for the box.
    """
    pid = read_pid(pid_file)
    if pid is None:
        raise Conflict("the box does not run")
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        raise Conflict("the box does not run") from None
    try:
        if not _is_init(pid, cgroup):
            raise Conflict("the box does not run")
        yield pid, pidfd
    finally:
        os.close(pidfd)


@contextmanager
def member(pid: int, cgroup_part: str) -> Iterator[int]:
    """Pidfd of a living process whose cgroup's path holds `cgroup_part`; Conflict when it is not.

    As of `init_process`, for a box that another program has started.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        raise Conflict("the box does not run") from None
    try:
        cgroup_with(pid, cgroup_part)
        yield pidfd
    finally:
        os.close(pidfd)


def cgroup_with(pid: int, part: str) -> str:
    """The path of a process's cgroup that holds `part`; Conflict when there is none."""
    try:
        text = (Path("/proc") / str(pid) / "cgroup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        text = ""
    for cgroup in sorted(cgroups_of(text)):
        if part in cgroup:
            return cgroup
    raise Conflict("the box does not run")


def runs(pid_file: Path, cgroup: str) -> bool:
    """Whether the box's init lives."""
    try:
        with init_process(pid_file, cgroup):
            return True
    except Conflict:
        return False


def read_pid(pid_file: Path) -> int | None:
    """The recorded pid; None when there is none (or it was cut short)."""
    try:
        return int(pid_file.read_text())
    except (FileNotFoundError, ValueError):
        return None


def rights(pid: int) -> dict[str, str]:
    """What a process may do, as the kernel tells it: capabilities, system call filter.

    Raises FileNotFoundError or ProcessLookupError when it is gone.
    """
    lines = (Path("/proc") / str(pid) / "status").read_text().splitlines()
    found = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return {name: found[name] for name in _RIGHTS if name in found}


def cgroups_of(text: str) -> set[str]:
    """The cgroup paths in the text of /proc/PID/cgroup."""
    return {line.split(":", 2)[2] for line in text.splitlines() if line.count(":") >= 2}


def is_zombie(stat: str) -> bool:
    """Whether the text of /proc/PID/stat is of a process that only waits to be reaped."""
    return stat.rpartition(")")[2].split()[0] in {"Z", "X"}


def _is_init(pid: int, cgroup: str) -> bool:
    process = Path("/proc") / str(pid)
    try:
        return (
            cgroup in cgroups_of((process / "cgroup").read_text())
            and not is_zombie((process / "stat").read_text())
            and not (process / "comm").read_text().startswith(_RUNTIME_COMM)
        )
    except (FileNotFoundError, ProcessLookupError):
        return False


async def wait_for_exec(pid_file: Path) -> None:
    """Waits until the runtime's process has become the box's own program, or has ended.

    The runtime returns an instant before. Raises BoxdError when that does not come about.
    """
    pid = read_pid(pid_file)
    deadline = time.monotonic() + EXEC_TIMEOUT
    while time.monotonic() < deadline:
        try:
            comm = (Path("/proc") / str(pid) / "comm").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return
        if not comm.startswith(_RUNTIME_COMM):
            return
        await asyncio.sleep(0.001)
    raise BoxdError("the box's first process does not start")


async def end(pid_file: Path, cgroup: str, grace: float) -> None:
    """Ends the init, by SIGTERM and after `grace` seconds by SIGKILL.

    With the init the kernel ends every process of its pid namespace. No error if it does not run.
    """
    try:
        with init_process(pid_file, cgroup) as (pid, pidfd):
            if grace > 0:
                signal.pidfd_send_signal(pidfd, signal.SIGTERM)
                if await _ended(pidfd, grace):
                    return
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            if not await _ended(pidfd, KILL_TIMEOUT):
                raise BoxdError(f"process {pid} of a box does not end after SIGKILL")
    except (Conflict, ProcessLookupError):
        return


async def wait_for_end(pid_file: Path, cgroup: str) -> None:
    """Waits until the killed init of a box is gone."""
    try:
        with init_process(pid_file, cgroup) as (pid, pidfd):
            if not await _ended(pidfd, KILL_TIMEOUT):
                raise BoxdError(f"process {pid} of a box does not end after SIGKILL")
    except Conflict:
        return


def kill(pids: list[int]) -> None:
    """Kills processes; those that are gone already are no error."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def _ended(pidfd: int, timeout: float) -> bool:
    """Waits for the end of a process; False when the time is over first."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        async with asyncio.timeout(timeout):
            await ended.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(pidfd)
    return True
