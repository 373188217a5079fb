"""Processes that outlive the daemon: started in their own session, adopted, supervised, ended.

A pidfd refers to the process, so a signal never reaches another process that reuses the pid. The
same class serves children and adopted processes, which are not children of this daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal as signals
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.errors import BoxdError, Unavailable
from boxd.tasks import BackgroundTasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from boxd.sandbox.sandbox import Sandbox

PROC = Path("/proc")
RESTART_DELAYS = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds between a crash and the next start. The last value repeats."""
ENDINGS, ENDING_PAUSE = 500, 0.01
"""Maximum number of attempts to kill all processes of a user, and seconds between them."""
STABLE_AFTER = 30.0
"""A crash after this many seconds of life restarts without delay."""


def start_ticks(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot; None if it has ended.

    A zombie counts as ended. Pid and start time identify a process until the next boot.
    """
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def user_of(pid: int) -> int | None:
    """Return the real user id of a process; None if it has ended."""
    try:
        text = (PROC / str(pid) / "status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    lines = (line.split() for line in text.splitlines())
    return next((int(words[1]) for words in lines if words[:1] == ["Uid:"]), None)


def end_processes_of(user: int) -> None:
    """Kill everything that runs as a user of the service. Blocks. Raises Unavailable.

    A sandboxed process that somebody took over may leave processes behind, which have its locks,
    its credentials and its files. All are killed at once, so none can start another meanwhile.
    """
    if user == 0:
        raise ValueError("processes of root do not belong to a sandbox")
    become = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups")
    for _ in range(ENDINGS):
        if not any(_runs_as(user, entry.name) for entry in PROC.iterdir()):
            return
        kill = [*become, "kill", "-KILL", "-1"]
        subprocess.run(kill, env={"PATH": "/usr/bin:/bin"}, check=False, capture_output=True)
        time.sleep(ENDING_PAUSE)
    raise Unavailable(f"processes of user {user} do not end after SIGKILL; restart the machine")


def _runs_as(user: int, name: str) -> bool:
    return name.isdigit() and user_of(int(name)) == user and start_ticks(int(name)) is not None


def processes_in(directory: Path, program: str) -> list[int]:
    """Return the pids of processes of `program` (a file name) that work in `directory`.

    Processes of other pid namespaces do not count: one of a box may have any name, and a working
    directory whose path has the same text.
    """
    pids: list[int] = []
    working_directory = str(directory.resolve())
    namespace = os.readlink(PROC / "self/ns/pid")
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        # A process that has just ended, or that this user may not inspect, is not ours.
        with contextlib.suppress(OSError):
            if os.readlink(entry / "ns/pid") != namespace:
                continue
            executable = Path(os.readlink(entry / "exe").removesuffix(" (deleted)"))
            if executable.name == program and os.readlink(entry / "cwd") == working_directory:
                pids.append(int(entry.name))
    return pids


class Process:
    """One process. Create it inside a running event loop. `close` releases it without ending it.

    Critical sections: none; the state changes only in `_ended`, on the loop.
    """

    def __init__(self, pid: int, child: subprocess.Popen[bytes] | None = None) -> None:
        """Raises ProcessLookupError if the process does not exist."""
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
        sandbox: Sandbox | None = None,
        pass_fds: tuple[int, ...] = (),
        stdout: int | None = None,
    ) -> Process:
        """Start `command` in its own session. Its output replaces the content of `log` (0600).

        `stdout` is the descriptor for its standard output, if that does not belong in the log.
        Without a `sandbox`, the process has the rights of the daemon. Blocks for a fork and exec, a
        few milliseconds. Raises OSError, and Unavailable if there can be no sandbox.
        """
        with contextlib.ExitStack() as stack:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
            stack.callback(os.close, output)
            if sandbox is not None:
                command, document = stack.enter_context(sandbox.command(command))
                pass_fds = (*pass_fds, document)
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output if stdout is None else stdout,
                stderr=output,
                cwd="/",
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
                start_new_session=True,
                umask=0o077,
                pass_fds=pass_fds,
            )
        return cls(child.pid, child)

    @property
    def alive(self) -> bool:
        """False once the process has ended."""
        return not self._exited.is_set()

    @property
    def status(self) -> str:
        """How the process ended, for users.

        For example `status 1` or `SIGKILL`; `unknown status` if it is not our child.
        """
        code = self._child.returncode if self._child is not None else None
        if code is None:
            return "unknown status"
        return signals.Signals(-code).name if code < 0 else f"status {code}"

    def signal(self, number: signals.Signals) -> None:
        """Send a signal, if the process has not ended."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                signals.pidfd_send_signal(self._fd, number)

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the process, at most `timeout` seconds.

        Return False if the process is still alive.
        """
        try:
            # Before Python 3.12 `wait_for` can lose a cancellation that arrives together with the
            # end of the process.
            async with asyncio.timeout(timeout):
                await self._exited.wait()
        except TimeoutError:
            # After a stall of the loop, both the timeout and the end of the process may be due. The
            # timeout then comes first.
            self._poll()
        return not self.alive

    async def end(self, steps: tuple[tuple[signals.Signals, float], ...]) -> None:
        """Send the signals in turn until the process has ended. Each has a time limit in seconds.

        Raises TimeoutError if the process survives the last signal.
        """
        for number, timeout in steps:
            self.signal(number)
            if await self.wait(timeout):
                return
        raise TimeoutError(f"process {self.pid} does not end")

    def close(self) -> None:
        """Release the process, which may keep running. Idempotent."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        if self._child is not None and self._child.returncode is None:
            # The process keeps running on purpose. Without this, Popen warns when it is collected.
            self._child.returncode = 0

    def _poll(self) -> None:
        """Handle an end that the loop has not reported yet."""
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
            # It may be a child that an earlier object released. Otherwise there is nothing to reap.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
        self._exited.set()


class Supervisor:
    """Restarts a process whenever it ends by itself.

    Critical section: only `_watch` replaces `_process`, and `release` cancels that task first.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[], Awaitable[Process]],
        on_crash: Callable[[str], None],
    ) -> None:
        """`start` returns a ready process; `on_crash` receives one line for the log."""
        self._name = name
        self._start = start
        self._on_crash = on_crash
        self._process: Process | None = None
        self._tasks = BackgroundTasks()

    @property
    def process(self) -> Process | None:
        """The current process."""
        return self._process

    def watch(self, process: Process) -> None:
        """Supervise a running process."""
        self._process = process
        self._tasks.start(self._watch(), name=self._name)

    async def release(self) -> Process | None:
        """Stop supervising; return the process, which keeps running."""
        await self._tasks.close()
        process, self._process = self._process, None
        return process

    async def _watch(self) -> None:
        failures = 0
        clock = asyncio.get_running_loop().time
        while True:
            if self._process is not None:
                start = clock()
                await self._process.wait()
                if clock() - start > STABLE_AFTER:
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
