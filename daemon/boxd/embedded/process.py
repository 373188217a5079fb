"""Processes that outlive the daemon: started in their own session, adopted, watched, ended.

A process is held by a pidfd, so that a signal never reaches another process that got the same
number. The same class serves children and adopted processes (which are nobody's children here).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal as signals
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.errors import BoxdError
from boxd.tasks import BackgroundTasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PROC = Path("/proc")
RESTART_DELAYS = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds between a crash and the next start; the last one repeats."""
STABLE_AFTER = 30.0
"""Seconds of life after which the next crash is answered without delay again."""


def start_ticks(pid: int) -> int | None:
    """When a process started, clock ticks since boot; None when it is gone or a zombie.

    With the pid it identifies a process for as long as the machine runs.
    """
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def processes_in(directory: Path, program: str) -> list[int]:
    """Pids of the processes of `program` (file name) whose working directory is `directory`."""
    found: list[int] = []
    wanted = str(directory.resolve())
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        # A process that ends while it is looked at, or belongs to somebody else, is not ours.
        with contextlib.suppress(OSError):
            executable = Path(os.readlink(entry / "exe").removesuffix(" (deleted)"))
            if executable.name == program and os.readlink(entry / "cwd") == wanted:
                found.append(int(entry.name))
    return found


class Process:
    """One process. Made inside a running event loop; `close` lets go of it without ending it.

    Critical sections: none; the state changes only in `_ended`, on the loop.
    """

    def __init__(self, pid: int, child: subprocess.Popen[bytes] | None = None) -> None:
        """Raises ProcessLookupError when there is no such process."""
        self.pid = pid
        self._child = child
        self._fd = os.pidfd_open(pid)
        self._exited = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._ended)

    @classmethod
    def spawn(
        cls,
        command: list[str],
        *,
        log: Path,
        user: tuple[int, int] | None = None,
        pass_fds: tuple[int, ...] = (),
        env: dict[str, str] | None = None,
    ) -> Process:
        """Starts `command` in its own session; its output replaces the content of `log` (0600).

        `user` is the (uid, gid) to run as, without supplementary groups; None: as ourselves.
        Blocks for the length of a fork and exec, a few milliseconds. Raises OSError.
        """
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", **(env or {})},
                start_new_session=True,
                user=None if user is None else user[0],
                group=None if user is None else user[1],
                extra_groups=None if user is None else [],
                umask=0o077,
                pass_fds=pass_fds,
            )
        finally:
            os.close(output)
        return cls(child.pid, child)

    @property
    def alive(self) -> bool:
        """False once it has ended."""
        return not self._exited.is_set()

    @property
    def status(self) -> str:
        """How it ended, for people: `status 1`, `SIGKILL`; `unknown status` when not our child."""
        code = self._child.returncode if self._child is not None else None
        if code is None:
            return "unknown status"
        return signals.Signals(-code).name if code < 0 else f"status {code}"

    def signal(self, number: signals.Signals) -> None:
        """Sends a signal; nothing happens when it has ended."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                signals.pidfd_send_signal(self._fd, number)

    async def wait(self, timeout: float | None = None) -> bool:
        """Waits for its end, at most `timeout` seconds. False when it still lives."""
        try:
            # Not `wait_for`: before Python 3.12 it forgets a cancellation that meets the end.
            async with asyncio.timeout(timeout):
                await self._exited.wait()
        except TimeoutError:
            # A loop that stood still may learn of both ends at once, and of this one first.
            self._look()
        return not self.alive

    async def end(self, steps: tuple[tuple[signals.Signals, float], ...]) -> None:
        """Sends each signal in turn, with its patience in seconds, until it has ended.

        Raises TimeoutError when it survives the last one.
        """
        for number, patience in steps:
            self.signal(number)
            if await self.wait(patience):
                return
        raise TimeoutError(f"process {self.pid} does not end")

    def close(self) -> None:
        """Lets go of the process, which may live on. Idempotent."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        if self._child is not None and self._child.returncode is None:
            # It is left running on purpose; Popen would warn about that when it is collected.
            self._child.returncode = 0

    def _look(self) -> None:
        """Learns of an end that the loop has not told yet."""
        if self.alive and self._fd >= 0:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            if poll.poll(0):
                self._ended()

    def _ended(self) -> None:
        self._loop.remove_reader(self._fd)
        if self._child is not None:
            self._child.wait()
        else:
            # It may be a child of ours that was let go of; else there is nothing to reap.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
        self._exited.set()


class Supervisor:
    """Starts a process again whenever it ends by itself.

    Critical section: `_process` is replaced only by `_watch`, and `stop` cancels that task first.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[], Awaitable[Process]],
        on_crash: Callable[[str], None],
    ) -> None:
        """`start` makes a ready process; `on_crash` gets one line for the log."""
        self._name = name
        self._start = start
        self._on_crash = on_crash
        self._process: Process | None = None
        self._tasks = BackgroundTasks()

    @property
    def process(self) -> Process | None:
        """The present process."""
        return self._process

    def watch(self, process: Process) -> None:
        """Begins to watch a running process."""
        self._process = process
        self._tasks.start(self._watch(), name=self._name)

    async def release(self) -> Process | None:
        """Stops watching; hands over the process, which runs on."""
        await self._tasks.close()
        process, self._process = self._process, None
        return process

    async def _watch(self) -> None:
        failures = 0
        clock = asyncio.get_running_loop().time
        while True:
            if self._process is not None:
                began = clock()
                await self._process.wait()
                if clock() - began > STABLE_AFTER:
                    failures = 0
                self._on_crash(f"{self._name} ended ({self._process.status}); starting it again")
                self._process.close()
                self._process = None
            await asyncio.sleep(RESTART_DELAYS[min(failures, len(RESTART_DELAYS) - 1)])
            failures += 1
            try:
                self._process = await self._start()
            except (OSError, BoxdError) as error:
                self._on_crash(f"{self._name} does not start: {error}")
