"""Commands of SSH sessions: starting them, collecting their status, ending their process groups."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import signal
import subprocess
import termios
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from box_guest import protocol
from box_guest.config import DEFAULT_PATH
from box_guest.control.identity import command_of
from box_guest.errors import SpawnError
from box_guest.process import processors, terminal
from box_guest.process.pumps import InputPump, OutputPump
from box_guest.shared import frames
from box_guest.shared.command_bytes import encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from box_guest.config import AgentConfig
    from box_guest.process.accounts import Account
    from box_guest.process.terminal import PtyRequest

DRAIN_S = 1.0
"""Seconds for which another process may keep a command's output open after the command's end."""
HANGUP_S = 1.0
"""Seconds from HUP to TERM."""
TERMINATE_S = 5.0
"""Seconds from TERM to KILL."""
_HANGUP_STEPS = ((signal.SIGHUP, HANGUP_S), (signal.SIGTERM, TERMINATE_S))
_POLL_S = 0.05
SESSION_OOM_SCORE = b"1000"
"""`oom_score_adj` of sessions: if the box runs out of memory, the kernel kills one of their
processes, and the agent, the box's init, survives. Any process may raise its own score."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Reaper:
    """Collects the status of every child, including those that the box's init inherits.

    Only this class waits for children, so that no status is lost to another waiter.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._watched: dict[int, asyncio.Future[int]] = {}
        self._loop.add_signal_handler(signal.SIGCHLD, self._collect)
        # Collect children of the program that ran in this process before: their signals arrived too
        # early.
        self._collect()

    def watch(self, pid: int) -> asyncio.Future[int]:
        """Return a future of a child's wait status.

        Must be called in the same step of the event loop as the start of the child.
        """
        future: asyncio.Future[int] = self._loop.create_future()
        self._watched[pid] = future
        return future

    def close(self) -> None:
        """Stop collecting."""
        self._loop.remove_signal_handler(signal.SIGCHLD)

    def _collect(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            future = self._watched.pop(pid, None)
            if future is not None and not future.done():
                future.set_result(status)


class Output(Protocol):
    """Receiver of a command's output and of its end: the channel."""

    def write(self, data: bytes, *, stderr: bool) -> None:
        """Take bytes of stdout or stderr."""

    def hold_input(self, held: bool) -> None:
        """Pause (`held`) or resume the client's input."""

    def exited(self, code: int) -> None:
        """Report that the command exited by itself. More of its output may follow."""

    def killed(self, name: str, core_dumped: bool) -> None:
        """Report that a signal ended the command (`name` without SIG). More output may follow."""

    def finished(self) -> None:
        """Report that all output has been written."""


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A command to run; None is a login shell. `env` is added to the account's environment.

    `sealed_for` is the id of the box if the command arrives sealed on its own input, see
    `handover`.
    """

    account: Account
    command: str | None
    env: Mapping[str, str]
    pty: PtyRequest | None
    sealed_for: str | None = None


class Command:
    """A running command of one channel.

    `finish()` runs from start to end in one task. The channel's callbacks call the other methods
    between its awaits; those methods touch only the pumps.
    """

    def __init__(self, spec: CommandSpec, output: Output, reaper: Reaper) -> None:
        """Start the command. Raises SpawnError."""
        self._output = output
        self._master: int | None = None
        self._popen = self._start_pty(spec) if spec.pty else self._start_pipes(spec)
        self.pid = self._popen.pid
        self._status = reaper.watch(self.pid)
        self._ended = False

    @property
    def running(self) -> bool:
        """Whether the command itself is alive (its children may outlive it)."""
        return not self._status.done()

    @property
    def input_closed(self) -> bool:
        """Whether the command's input is closed: by its owner, or because nothing reads it."""
        return self._input.closed

    async def finish(self) -> None:
        """Wait for the command, report how it ended, and pass on all of its output."""
        status = await asyncio.shield(self._status)
        self._popen.returncode = os.waitstatus_to_exitcode(status)
        # Report at once, even while output waits for a slow client: the daemon ends a command that
        # takes too long, and must know one that has ended in time.
        if not self._ended:
            self._tell(status)
        open_pumps = [pump.done for pump in self._pumps if not pump.done.done()]
        if open_pumps:
            await asyncio.wait(open_pumps, timeout=DRAIN_S)
        for pump in self._pumps:
            pump.last_call()
        # Deliberately without a timeout: a slow client gets all output. The end of the channel
        # closes the pumps, which completes these futures.
        await asyncio.gather(*(pump.done for pump in self._pumps))
        if self._ended:
            return
        self._ended = True
        self._input.close()
        self._output.finished()

    def feed(self, data: bytes) -> None:
        """Write bytes to the command's input."""
        self._input.feed(data)

    def end_input(self) -> None:
        """Close the command's input."""
        self._input.end()

    def pause(self) -> None:
        """Stop reading output, because the channel accepts no more for now."""
        for pump in self._pumps:
            pump.pause()

    def resume(self) -> None:
        """Continue to read output."""
        for pump in self._pumps:
            pump.resume()

    def resize(self, size: tuple[int, int, int, int]) -> None:
        """Set the window size (columns, rows, width, height); does nothing without a terminal."""
        if self._live_master is not None:
            terminal.resize(self._live_master, size)

    def send_break(self) -> bool:
        """Send a line break to the terminal. Return False without one."""
        if self._live_master is None:
            return False
        terminal.send_break(self._live_master)
        return True

    def signal(self, name: str) -> None:
        """Send a signal (name without SIG) to the foreground group. Unknown names do nothing."""
        number = getattr(signal, f"SIG{name}", None)
        if isinstance(number, signal.Signals) and self.running:
            for group in self._groups()[-1:]:
                _signal_group(group, number)

    def kill(self) -> None:
        """Kill the command's process groups if it still runs."""
        for group in self._groups() if self.running else ():
            _signal_group(group, signal.SIGKILL)

    async def terminate(self) -> None:
        """Send TERM to the command's process group, and KILL after TERMINATE_S seconds.

        Returns when the command itself has ended. Does nothing if it has ended before.
        """
        if self.running:
            await end_group(self.pid, ((signal.SIGTERM, TERMINATE_S),))
            await asyncio.wait([self._status])

    async def abandon(self) -> None:
        """Release all descriptors because the channel is gone, and end the command if it still
        runs.

        A command that ended by itself may have left children behind on purpose; they continue.
        """
        self._ended = True
        groups = self._groups() if self.running else []
        for pump in self._pumps:
            pump.close()
        self._input.close()
        for group in groups:
            await end_group(group)

    def _tell(self, status: int) -> None:
        if os.WIFSIGNALED(status):
            self._output.killed(_signal_name(os.WTERMSIG(status)), os.WCOREDUMP(status))
        else:
            self._output.exited(os.WEXITSTATUS(status))

    @property
    def _live_master(self) -> int | None:
        """The terminal's descriptor while it is open, else None."""
        return None if self._master is None or self._pumps[0].done.done() else self._master

    def _groups(self) -> list[int]:
        """Return the command's own process group and, last, the terminal's foreground group."""
        groups = [self.pid]
        if self._live_master is not None:
            foreground = terminal.foreground_group(self._live_master)
            if foreground not in (None, self.pid):
                groups.append(foreground)
        return groups

    def _start_pty(self, spec: CommandSpec) -> subprocess.Popen[bytes]:
        if spec.pty is None:
            raise SpawnError("the client requested no terminal")
        try:
            master, slave = terminal.open_pair(spec.pty)
        except OSError as error:
            raise SpawnError(f"cannot open a terminal: {error.strerror}") from None
        try:
            if spec.account.uid:
                os.fchown(slave, spec.account.uid, -1)
            env = {"TERM": spec.pty.term or "dumb", "SSH_TTY": os.ttyname(slave)}
            popen = _spawn(spec, env, (slave, slave, slave), _take_terminal)
        except BaseException:
            os.close(master)
            raise
        finally:
            os.close(slave)
        self._master = master
        self._pumps = [OutputPump(master, self._write_stdout)]
        self._input = InputPump(
            os.dup(master),
            self._output.hold_input,
            lambda in_line: (
                b""
                if self._live_master is None
                else terminal.end_of_input(self._live_master, in_line=in_line)
            ),
        )
        return popen

    def _start_pipes(self, spec: CommandSpec) -> subprocess.Popen[bytes]:
        first = b"" if spec.sealed_for is None else _first_frame(spec, spec.sealed_for)
        pipes = [os.pipe(), os.pipe(), os.pipe()]
        (stdin, feed), (read_out, stdout), (read_err, stderr) = pipes
        try:
            popen = _spawn(spec, {}, (stdin, stdout, stderr), None)
        except BaseException:
            for descriptor in (feed, read_out, read_err):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (stdin, stdout, stderr):
                os.close(descriptor)
        self._pumps = [
            OutputPump(read_out, self._write_stdout),
            OutputPump(read_err, self._write_stderr),
        ]
        self._input = InputPump(feed, self._output.hold_input, None)
        if first:
            self._input.feed(first)
        return popen

    def _write_stdout(self, data: bytes) -> None:
        self._output.write(data, stderr=False)

    def _write_stderr(self, data: bytes) -> None:
        self._output.write(data, stderr=True)


async def end_group(
    group: int, steps: Sequence[tuple[signal.Signals, float]] = _HANGUP_STEPS
) -> None:
    """Send the signals of `steps`, then KILL, to a process group; return when it is empty or
    killed.

    A step is a signal and the seconds to wait after it; by default HUP, then TERM.
    """
    for number, patience in steps:
        _signal_group(group, number)
        # A stopped process acts on a signal only when it continues.
        _signal_group(group, signal.SIGCONT)
        for _ in range(round(patience / _POLL_S)):
            if not _exists(group):
                return
            await asyncio.sleep(_POLL_S)
    _signal_group(group, signal.SIGKILL)


def session_env(
    account: Account, config: AgentConfig, sent: Mapping[bytes, bytes]
) -> dict[str, str]:
    """Return a session's environment: account, then image, then variables sent with it.

    Sent variables are trusted, because only the daemon can send them. Drops names that no shell can
    hold.
    """
    env = {
        "PATH": f"{DEFAULT_PATH}:{protocol.RUNTIME_DIR}/bin",
        "LANG": "C.UTF-8",
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": account.shell,
        **processors.environment(),
        **config.env,
    }
    for key, value in sent.items():
        name = key.decode("utf-8", "surrogateescape")
        if _VARIABLE.fullmatch(name) and b"\0" not in value:
            env[name] = value.decode("utf-8", "surrogateescape")
    return env


def _spawn(
    spec: CommandSpec,
    env: Mapping[str, str],
    streams: tuple[int, int, int],
    preexec: Callable[[], None] | None,
) -> subprocess.Popen[bytes]:
    account = spec.account
    program, arguments, own_env = _program(spec)
    foreign = account.uid != os.geteuid()
    try:
        # Without preexec_fn the interpreter uses vfork, which makes a start three times as fast.
        # Only terminals need preexec_fn.
        popen = subprocess.Popen(
            arguments,
            executable=program,
            env={**own_env, **env},
            cwd=account.home if Path(account.home).is_dir() else "/",
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            start_new_session=True,
            preexec_fn=preexec,
            user=account.uid if foreign else None,
            group=account.gid if foreign else None,
            extra_groups=account.groups if foreign else None,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        text = error.strerror if isinstance(error, OSError) else str(error)
        raise SpawnError(f"{os.fsdecode(program)}: {text}") from None
    _offer(popen.pid)
    return popen


def _program(spec: CommandSpec) -> tuple[str | bytes, list[bytes], Mapping[str, str]]:
    """Return program, arguments and environment of a command. Raises SpawnError."""
    if spec.sealed_for is not None:
        try:
            arguments = command_of("box_guest.handover")
        except (OSError, ValueError) as error:
            raise SpawnError(f"cannot find the handover program: {error}") from None
        # Variables of the image and the session may affect loaders and libraries: only the command
        # gets them.
        return arguments[0], arguments, {}
    shell, command = _shell(spec.account), encoded(spec.command)
    name = Path(shell).name
    arguments = [f"-{name}".encode()] if command is None else [name.encode(), b"-c", command]
    return shell, arguments, spec.env


def _shell(account: Account) -> str:
    return account.shell if os.access(account.shell, os.X_OK) else "/bin/sh"


def _first_frame(spec: CommandSpec, box_id: str) -> bytes:
    """Return the agent's frame for the handover program. Raises SpawnError."""
    try:
        words = [box_id.encode(), os.fsencode(_shell(spec.account)), *frames.variables(spec.env)]
        return frames.framed(frames.joined(words))
    except ValueError as error:
        raise SpawnError(f"the environment of the session is invalid: {error}") from None


def _offer(pid: int) -> None:
    """Make a new process and its children the first victims when memory runs out."""
    try:
        handle = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return  # it has ended, or this is not a box
    try:
        os.write(handle, SESSION_OOM_SCORE)
    except OSError:
        return
    finally:
        os.close(handle)


def _take_terminal() -> None:
    """Make the terminal the controlling terminal of the child, which leads a session by now."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return f"RT{number}"
