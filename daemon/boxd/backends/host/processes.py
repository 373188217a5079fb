"""The init processes of boxes, as the host sees them."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends.interface import InitState
from boxd.errors import BoxdError, Conflict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

EXEC_TIMEOUT = 10.0
KILL_TIMEOUT = 10.0
_RIGHTS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
_SWITCHES = ("voluntary", "nonvoluntary")
_LEVELS_IN_BOX = 2
"""Minimum of pids of a process in a box: one on the host, one inside the box."""
_SUSPECT = {"t", "T", "Z", "X"}
"""States of stopped and ended processes."""
_STAT_BYTES = 4096
_RUNTIME_COMM = "runc:["
"""Prefix of the name of runc's processes, before they execute the box's init."""


@contextmanager
def init_process(pid_file: Path, cgroup: str) -> Iterator[tuple[int, int]]:
    """Yield pid and pidfd of a box's init. Raises Conflict if it is not running.

    The function opens the descriptor before it checks the process. So it never mistakes a reused
    pid for the box.
    """
    pid = read_pid(pid_file)
    if pid is None:
        raise Conflict("the box is not running")
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        raise Conflict("the box is not running") from None
    try:
        if not _is_init(pid, cgroup):
            raise Conflict("the box is not running")
        yield pid, pidfd
    finally:
        os.close(pidfd)


@contextmanager
def member(pid: int, cgroup_part: str) -> Iterator[int]:
    """Yield a pidfd of a live process whose cgroup path contains `cgroup_part`, else Conflict.

    Like `init_process`, but for a box that another program has started.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        raise Conflict("the box is not running") from None
    try:
        cgroup_with(pid, cgroup_part)
        yield pidfd
    finally:
        os.close(pidfd)


def cgroup_with(pid: int, part: str) -> str:
    """Return a process's cgroup path that contains `part`. Raises Conflict if there is none."""
    try:
        text = (Path("/proc") / str(pid) / "cgroup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        text = ""
    for cgroup in sorted(cgroups_of(text)):
        if part in cgroup:
            return cgroup
    raise Conflict("the box is not running")


def runs(pid_file: Path, cgroup: str) -> bool:
    """Return whether the box's init is alive."""
    try:
        with init_process(pid_file, cgroup):
            return True
    except Conflict:
        return False


def read_pid(pid_file: Path) -> int | None:
    """Return the recorded pid, or None if there is none or the file is incomplete."""
    try:
        return int(pid_file.read_text())
    except (FileNotFoundError, ValueError):
        return None


def rights(pid: int) -> dict[str, str]:
    """Return a process's capabilities and system call filter, as in /proc/PID/status.

    Raises FileNotFoundError or ProcessLookupError if the process has ended.
    """
    lines = (Path("/proc") / str(pid) / "status").read_text(errors="replace").splitlines()
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return {name: fields[name] for name in _RIGHTS if name in fields}


def init_state(pid: int) -> InitState:
    """Return the state of a process's main thread, or the default if it has ended."""
    status = _status(pid)
    state = status.get("State", "")[:1]
    return InitState(
        stopped=_why_stopped(status) if state in ("t", "T") else "",
        sleeping=state == "S",
        switches=sum(int(status.get(f"{kind}_ctxt_switches", 0)) for kind in _SWITCHES),
    )


def suspects(pids: Mapping[str, int | None]) -> set[str]:
    """Return the names of processes that seem stopped or ended, with one short read for each.

    A pid may have been reused. So absence from the result does not prove that a process is alive.
    """
    return {name for name, pid in pids.items() if pid is None or _state(pid) in _SUSPECT}


def _state(pid: int) -> str:
    """Return the letter of a process's state, or X if it has ended.

    One unbuffered read of one file takes a third of the time of `_status`.
    """
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except (FileNotFoundError, ProcessLookupError):
        return "X"
    try:
        stat = os.read(descriptor, _STAT_BYTES)
    except ProcessLookupError:
        return "X"
    finally:
        os.close(descriptor)
    return stat[stat.rindex(b")") + 2 :][:1].decode()


def _why_stopped(status: dict[str, str]) -> str:
    """Return the reason. A debugger is named by its pid only: the box chooses program names."""
    tracer = int(status.get("TracerPid", "0"))
    if tracer == 0:
        return "a signal stopped it"
    numbers = _status(tracer).get("NSpid", "").split()
    if len(numbers) < _LEVELS_IN_BOX:
        return "a debugger outside the box stopped it"
    return f"process {numbers[-1]} of the box stopped it with ptrace"


def _status(pid: int) -> dict[str, str]:
    """Return the fields of /proc/PID/status, or {} if the process has ended."""
    try:
        text = (Path("/proc") / str(pid) / "status").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def cgroups_of(text: str) -> set[str]:
    """Return the cgroup paths in the text of /proc/PID/cgroup."""
    return {line.split(":", 2)[2] for line in text.splitlines() if line.count(":") >= 2}


def is_zombie(stat: str) -> bool:
    """Return whether the text of /proc/PID/stat describes a zombie."""
    return stat.rpartition(")")[2].split()[0] in {"Z", "X"}


def _is_init(pid: int, cgroup: str) -> bool:
    process = Path("/proc") / str(pid)
    try:
        return cgroup in cgroups_of((process / "cgroup").read_text()) and not is_zombie(
            (process / "stat").read_text(errors="replace")
        )
    except (FileNotFoundError, ProcessLookupError):
        return False


async def wait_for_exec(pid_file: Path) -> None:
    """Wait until the runtime's process has executed the box's own program, or has ended.

    The runtime returns shortly before that. Raises BoxdError after EXEC_TIMEOUT.
    """
    pid = read_pid(pid_file)
    deadline = time.monotonic() + EXEC_TIMEOUT
    while time.monotonic() < deadline:
        try:
            comm = (Path("/proc") / str(pid) / "comm").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return
        if not comm.startswith(_RUNTIME_COMM):
            return
        await asyncio.sleep(0.001)
    raise BoxdError("the box's first process does not start")


async def end(pid_file: Path, cgroup: str, grace: float) -> None:
    """End the init with SIGTERM, or with SIGKILL after `grace` seconds.

    A stopped init cannot end by itself, so it gets no grace period. When init ends, the kernel ends
    every process of its pid namespace. No error if it is not running.
    """
    try:
        with init_process(pid_file, cgroup) as (pid, pidfd):
            if grace > 0 and not init_state(pid).stopped:
                signal.pidfd_send_signal(pidfd, signal.SIGTERM)
                if await ends_within(pidfd, grace):
                    return
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            if not await ends_within(pidfd, KILL_TIMEOUT):
                raise BoxdError(f"process {pid} of a box does not end after SIGKILL")
    except (Conflict, ProcessLookupError):
        return


async def wait_for_end(pid_file: Path, cgroup: str) -> None:
    """Wait until the killed init of a box has ended."""
    try:
        with init_process(pid_file, cgroup) as (pid, pidfd):
            if not await ends_within(pidfd, KILL_TIMEOUT):
                raise BoxdError(f"process {pid} of a box does not end after SIGKILL")
    except Conflict:
        return


def kill(pids: list[int]) -> None:
    """Kill processes. No error for those that have ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def has_ended(pidfd: int) -> bool:
    """Return whether the process has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


async def ends_within(pidfd: int, timeout: float) -> bool:
    """Wait for the end of a process. Return False after `timeout` seconds."""
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
