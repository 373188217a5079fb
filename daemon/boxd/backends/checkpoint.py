"""Dumps a frozen box into a directory, and restores it from one, by CRIU behind runc.

Knows no records and takes no lock of a box; whoever calls serialises the calls for one box. What
works on a box has a session of its own and goes on when the service dies in between; it holds the
lock file of the box until it ends (`alone_with`), so that the next service waits for it.
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

from boxd.backends import criu_config
from boxd.backends.records import write
from boxd.backends.run import last_words, run_silent
from boxd.errors import BoxdError, Conflict, DiskFull, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.backends.hostnames import BoxPaths

DUMP_TIMEOUT = 60.0
RESTORE_TIMEOUT = 60.0
BUSY_TIMEOUT = 60.0
"""Seconds for what an earlier service began to come to its end; then it is ended."""
END_TIMEOUT = 10.0
PAUSE = 1.0
"""Seconds after which CRIU is tried once more when it could not even begin."""
_NOT_BEGUN = "when initializing kerndat"
"""CRIU looks at the kernel first. When it fails there the host is short of something for the moment
(see `hostshares`), and no box has been touched."""
_NO_SPACE = "No space left on device"
_LEAST = 1024 * 1024
"""Bytes: with less than this a disk is full. CRIU does not always say why it cannot write."""
_MARK = ': >"$0"; sync "$0" "$1"; shift; exec "$@"'
_TASKS_RUN = "Tasks resumed"
"""In CRIU's log of a restore from when the processes run."""


class RestoreFailed(BoxdError):
    """The box does not live. `repeatable`: none of its processes has run."""

    def __init__(self, words: str, *, repeatable: bool) -> None:
        super().__init__(words)
        self.repeatable = repeatable


@dataclass(frozen=True, slots=True)
class Tools:
    """Which CRIU, and where runc keeps its state."""

    criu: Path
    runc_root: Path

    def runc(self, *arguments: str) -> tuple[str, ...]:
        """A command line of runc."""
        return ("runc", "--root", str(self.runc_root), "--criu", str(self.criu), *arguments)


async def dump(tools: Tools, box_id: str, paths: BoxPaths, images: Path, *, drive: bool) -> None:
    """Writes the memory of a frozen box into an empty directory; `drive`: /wrk is mounted in it.

    The box lives afterwards; after an error or a cancellation it may have been let go on. Conflict
    when it holds what cannot be kept, in CRIU's words; DiskFull; Unavailable when it takes too
    long.
    """
    write(paths.criu_config, criu_config.for_dump(drive=drive, masked=_masked()))
    arguments = criu_config.dump(box_id, images, paths.criu_work)
    for last in (False, True):
        if await _runc(tools, paths, *arguments, timeout=DUMP_TIMEOUT) == 0:
            return
        words = _words(paths, criu_config.DUMP_LOG)
        if _NOT_BEGUN in words and not last:
            await asyncio.sleep(PAUSE)
            continue
        if _NOT_BEGUN in words:
            raise Unavailable(_cannot_begin(words))
        if _is_full(images) or _NO_SPACE in _log(paths, criu_config.DUMP_LOG):
            raise DiskFull(f"the memory of the box has no room on the host's disk: {words}")
        raise Conflict(f"the box cannot be suspended as it is now: {words}")


async def restore(
    tools: Tools, box_id: str, paths: BoxPaths, images: Path, mark: Path, *, drive: Path | None
) -> None:
    """Brings a box back from a directory; it runs when this returns. Raises RestoreFailed.

    The file `mark` is made, and is on the disk, before anything of it can run: by the process that
    does it, so that there is none when that was not started. runc must not know the box. After a
    failure processes of it may be there; not after Unavailable, when the host is short of
    something, and there is no mark then.
    """
    write(paths.criu_config, criu_config.for_restore(drive, paths.empty))
    paths.pid.unlink(missing_ok=True)
    arguments = criu_config.restore(
        box_id, images, paths.criu_work, bundle=paths.bundle, pid_file=paths.pid
    )
    before = ("sh", "-ec", _MARK, str(mark), str(mark.parent))
    for last in (False, True):
        if await _runc(tools, paths, *arguments, timeout=RESTORE_TIMEOUT, before=before) == 0:
            return
        log = _log(paths, criu_config.RESTORE_LOG)
        words = _words(paths, criu_config.RESTORE_LOG)
        if _NOT_BEGUN not in words:
            raise RestoreFailed(words, repeatable=_TASKS_RUN not in log)
        _take_away(mark)
        if last:
            raise Unavailable(_cannot_begin(words))
        await asyncio.sleep(PAUSE)


@asynccontextmanager
async def alone_with(paths: BoxPaths) -> AsyncIterator[int]:
    """Waits for whoever dumps or restores the box, also for a dead service, and keeps others out.

    Gives the descriptor that holds the lock as long as any process has it. Who does not come to
    an end is ended. Raises Unavailable when even that does not help.
    """
    descriptor = os.open(paths.busy, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not await _lock(descriptor, BUSY_TIMEOUT):
            _end_holders(paths.busy)
            if not await _lock(descriptor, END_TIMEOUT):
                raise Unavailable("an earlier dump or restore of the box does not end")
        yield descriptor
    finally:
        os.close(descriptor)


async def _runc(
    tools: Tools, paths: BoxPaths, *arguments: str, timeout: float, before: tuple[str, ...] = ()
) -> int:
    """`before` is a program that ends by becoming the one whose command line follows."""
    paths.log.unlink(missing_ok=True)
    paths.criu_work.mkdir(mode=0o700, exist_ok=True)
    for log in (criu_config.DUMP_LOG, criu_config.RESTORE_LOG):
        (paths.criu_work / log).unlink(missing_ok=True)
    logged = ("--log", str(paths.log), "--log-format", "json")
    async with alone_with(paths) as descriptor:
        return await run_silent(
            *before,
            *tools.runc(*logged, *arguments),
            timeout=timeout,
            first=tools.criu.parent,  # from 1.2 on runc takes the first CRIU that it finds
            alone=True,
            pass_fds=(descriptor,),
        )


def _masked() -> list[str]:
    return [path for path in criu_config.MASKED if Path(path).is_dir()]


def _take_away(mark: Path) -> None:
    mark.unlink()


def _cannot_begin(words: str) -> str:
    return f"CRIU cannot begin on this host now; it may be short of something: {words}"


def _is_full(directory: Path) -> bool:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize < _LEAST


def _log(paths: BoxPaths, name: str) -> str:
    with suppress(FileNotFoundError):
        return (paths.criu_work / name).read_text(errors="replace")
    return ""


def _words(paths: BoxPaths, name: str) -> str:
    """CRIU's, and runc's where CRIU did not get as far."""
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
    """Ends the processes that have the file open, but for this one."""
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if any(os.readlink(place) == str(lock) for place in (process / "fd").iterdir()):
                os.kill(int(process.name), signal.SIGKILL)
