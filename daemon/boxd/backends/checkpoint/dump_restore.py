"""Dumps a frozen box into a directory, and restores it, with CRIU through runc.

`restore_gate` checks a restored box before any of its processes runs.

This module reads no records and takes no lock of a box: callers must serialise the calls for each
box. runc and CRIU run in their own session and continue when the service dies. Both hold the box's
lock file until they end (`alone_with`), so the next service waits for them.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends.checkpoint import criu_config
from boxd.backends.checkpoint.restore_gate import Gate, Steps
from boxd.backends.host import mounts
from boxd.backends.host.run import last_words, run_silent
from boxd.backends.records import write
from boxd.errors import BoxdError, Conflict, DiskFull, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.backends.host.names import BoxPaths

DUMP_TIMEOUT = 60.0
RESTORE_TIMEOUT = 60.0
BUSY_TIMEOUT = 60.0
"""Seconds to wait for a dump or restore of an earlier service before killing it."""
END_TIMEOUT = 10.0
PAUSE = 1.0
"""Seconds before CRIU is retried once, if it could not start."""
_NOT_BEGUN = "when initializing kerndat"
"""CRIU inspects the kernel first. If that fails, the host is short of a resource for the moment
(see `hostshares`), and CRIU has not touched a box."""
_HIGH = 100
_NO_SPACE = "No space left on device"
_LEAST = 1024 * 1024
"""Bytes. With less than this free, the disk counts as full: CRIU does not always say why it cannot
write."""
_TASKS_RUN = "Tasks resumed"
"""CRIU's log of a restore contains this text once the processes run."""


class RestoreRefused(BoxdError):
    """The restored box failed the check. None of its processes has run."""


class RestoreFailed(BoxdError):
    """The restore failed. `repeatable`: none of the box's processes has run."""

    def __init__(self, words: str, *, repeatable: bool) -> None:
        super().__init__(words)
        self.repeatable = repeatable


@dataclass(frozen=True, slots=True)
class Tools:
    """The CRIU to use, the directory of runc's state, and the mounts that mask paths in boxes.

    `cgroups` are the files through which a process joins the service's own cgroups.
    """

    criu: Path
    runc_root: Path
    masks: Path
    cgroups: tuple[Path, ...] = ()

    def runc(self, criu: Path, *arguments: str) -> tuple[str, ...]:
        """Return a runc command line that starts the program `criu` in place of CRIU."""
        places = ("--root", str(self.runc_root), "--criu", str(criu))
        return (*mounts.apart(), "runc", *places, *arguments)


async def dump(
    tools: Tools, box_id: str, paths: BoxPaths, images: Path, *, drive: bool, own_users: bool
) -> None:
    """Write the memory of a frozen box into an empty directory. `drive`: /wrk is mounted in it.

    `own_users`: it has its own user namespace. The box is alive afterwards. After an error or a
    cancellation it may be running.

    Raises Conflict with CRIU's error if the box has an object that cannot be dumped, DiskFull, and
    Unavailable if the dump takes too long.
    """
    write(paths.criu_config, criu_config.for_dump(drive=drive, masked=_masked()))
    arguments = criu_config.dump(box_id, images, paths.criu_work, own_users=own_users)
    for last in (False, True):
        if await _runc(tools, paths, tools.criu, *arguments, timeout=DUMP_TIMEOUT) == 0:
            return
        words = _words(paths, criu_config.DUMP_LOG)
        if _NOT_BEGUN in words and not last:
            await asyncio.sleep(PAUSE)
            continue
        if _NOT_BEGUN in words:
            raise Unavailable(_cannot_begin(words))
        if _is_full(images) or _NO_SPACE in _log(paths, criu_config.DUMP_LOG):
            raise DiskFull(f"the host's disk has no room for the memory of the box: {words}")
        raise Conflict(f"CRIU cannot dump its processes: {words}")


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved box: the directory of its images, their mark, its cgroup, and a mount for its /wrk.

    `drive` must be given if, and only if, /wrk was mounted at the dump.
    """

    images: Path
    mark: Path
    cgroup: str
    drive: Path | None


async def restore(
    tools: Tools, box_id: str, paths: BoxPaths, saved: Saved, *, steps: Steps
) -> None:
    """Restore a box. The box runs when this returns.

    `steps` are done before any process of the box runs. If one raises BoxdError, no process ever
    runs.

    The mark is on the disk before a process runs; without it, none has run. runc must not know the
    box. After a failure, processes of the box may exist.

    Raises RestoreRefused if a step rejects the box, RestoreFailed if the restore fails, and
    Unavailable if the host is short of a resource. After Unavailable, no process exists.
    """
    text = criu_config.for_restore(
        saved.drive,
        tools.masks,
        cgroup=saved.cgroup,
        images=saved.images,
        work=paths.criu_work,
    )
    write(paths.criu_config, text)
    paths.pid.unlink(missing_ok=True)
    arguments = criu_config.restore(
        box_id,
        saved.images,
        paths.criu_work,
        bundle=paths.bundle,
        pid_file=paths.pid,
        own_users=steps.connect is not None,
    )
    for last in (False, True):
        gate = Gate(paths.relay, steps)
        program = gate.program(tools.criu, saved.mark, tools.cgroups)
        async with gate.opened():
            status = await _runc(tools, paths, program, *arguments, timeout=RESTORE_TIMEOUT)
        if gate.refusal is not None:
            raise RestoreRefused(str(gate.refusal))
        if status == 0 and gate.permitted:
            return
        words = _words(paths, criu_config.RESTORE_LOG)
        if status == 0 or _NOT_BEGUN not in words:
            raise _failure(paths, saved.mark, words)
        if last:
            raise Unavailable(_cannot_begin(words))
        await asyncio.sleep(PAUSE)


def _failure(paths: BoxPaths, mark: Path, words: str) -> RestoreFailed:
    """Return the error of a failed restore, and mark the memory as used if processes have run."""
    repeatable = _TASKS_RUN not in _log(paths, criu_config.RESTORE_LOG)
    if not repeatable:
        mark.touch()
    return RestoreFailed(words, repeatable=repeatable)


@asynccontextmanager
async def alone_with(paths: BoxPaths) -> AsyncIterator[int]:
    """Hold the box's lock file: wait for any dump or restore of the box, and keep others out.

    The wait includes work of a service that has died. Yields the descriptor that holds the lock as
    long as any process has it open. The function kills a holder that does not end within
    BUSY_TIMEOUT. Raises Unavailable if the lock is still held after that.
    """
    descriptor = _open_high(paths.busy)
    try:
        if not await _lock(descriptor, BUSY_TIMEOUT):
            _end_holders(paths.busy)
            if not await _lock(descriptor, END_TIMEOUT):
                raise Unavailable("an earlier dump or restore of the box does not end; try again")
        yield descriptor
    finally:
        os.close(descriptor)


def _open_high(path: Path) -> int:
    """Open a file above runc's descriptors: its CRIU script needs one digit (`restore_gate`)."""
    low = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    finally:
        os.close(low)


async def _runc(tools: Tools, paths: BoxPaths, criu: Path, *arguments: str, timeout: float) -> int:
    """Run runc, which starts `criu` in place of CRIU, and return its exit status."""
    paths.log.unlink(missing_ok=True)
    paths.criu_work.mkdir(mode=0o700, exist_ok=True)
    for log in (criu_config.DUMP_LOG, criu_config.RESTORE_LOG):
        (paths.criu_work / log).unlink(missing_ok=True)
    logged = ("--log", str(paths.log), "--log-format", "json")
    async with alone_with(paths) as descriptor:
        return await run_silent(
            *tools.runc(criu, *logged, *arguments),
            timeout=timeout,
            first=criu.parent,  # runc from 1.2 on uses the first CRIU in PATH
            alone=True,
            pass_fds=(descriptor,),
        )


def _masked() -> list[str]:
    return [path for path in criu_config.MASKED if Path(path).is_dir()]


def _cannot_begin(words: str) -> str:
    return f"CRIU cannot start on this host now; the host may be short of a resource: {words}"


def _is_full(directory: Path) -> bool:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize < _LEAST


def _log(paths: BoxPaths, name: str) -> str:
    with suppress(FileNotFoundError):
        return (paths.criu_work / name).read_text(errors="replace")
    return ""


def _words(paths: BoxPaths, name: str) -> str:
    """Return the error from CRIU's log, or from runc's log if CRIU wrote none."""
    log = _log(paths, name)
    return criu_config.complaint(log) if log else last_words(paths.log)


async def _lock(descriptor: int, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.01)
        else:
            return True


def _end_holders(lock: Path) -> None:
    """Kill all processes that have the file open, except this one."""
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if any(os.readlink(place) == str(lock) for place in (process / "fd").iterdir()):
                os.kill(int(process.name), signal.SIGKILL)
