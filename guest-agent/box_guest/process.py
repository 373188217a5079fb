"""Commands of SSH sessions: starting them, collecting their status, ending their groups."""

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

from box_guest import frames, protocol, terminal
from box_guest.commandbytes import encoded
from box_guest.config import DEFAULT_PATH
from box_guest.errors import SpawnError
from box_guest.identity import command_of
from box_guest.pumps import InputPump, OutputPump

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from box_guest.accounts import Account
    from box_guest.config import AgentConfig
    from box_guest.terminal import PtyRequest

DRAIN_S = 1.0
"""How long someone else may hold a command's output open after the command's end."""
HANGUP_S = 1.0
"""From HUP to TERM."""
TERMINATE_S = 5.0
"""From TERM to KILL."""
_POLL_S = 0.05
FIRST_TO_DIE = b"1000"
"""`oom_score_adj` of sessions: when the box is out of memory, one of theirs ends, and the agent,
which is the box's init, goes on. Anybody may raise it."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Reaper:
    """Collects the status of every child, its own and those that the init of a box inherits.

    Only this class waits for children, so that no status is ever lost to another waiter.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._watched: dict[int, asyncio.Future[int]] = {}
        self._loop.add_signal_handler(signal.SIGCHLD, self._collect)
        # Children of this process under its former program: their signals came too early.
        self._collect()

    def watch(self, pid: int) -> asyncio.Future[int]:
        """The wait status of a child. To be called in the same step of the loop as its start."""
        future: asyncio.Future[int] = self._loop.create_future()
        self._watched[pid] = future
        return future

    def close(self) -> None:
        """Stops collecting."""
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
    """Where a command's bytes and end go: the channel."""

    def write(self, data: bytes, *, stderr: bool) -> None:
        """Takes bytes of one stream."""

    def hold_input(self, held: bool) -> None:
        """Stops (or lets go) what the client sends."""

    def exited(self, code: int) -> None:
        """The command ended by itself. Output of it may follow."""

    def killed(self, name: str, core_dumped: bool) -> None:
        """The command was ended by a signal (name without SIG). Output of it may follow."""

    def finished(self) -> None:
        """Nothing follows."""


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """What to run: None is a login shell. `env` comes on top of the account's environment.

    `sealed_for`: id of the box; the command comes sealed on its own input, see `handover`.
    """

    account: Account
    command: str | None
    env: Mapping[str, str]
    pty: PtyRequest | None
    sealed_for: str | None = None


class Command:
    """A running command of one channel.

    `finish()` runs from start to end in one task; the other methods are called by the channel's
    callbacks between its awaits and only touch the pumps.
    """

    def __init__(self, spec: CommandSpec, output: Output, reaper: Reaper) -> None:
        """Starts it. Raises SpawnError."""
        self._output = output
        self._master: int | None = None
        self._popen = self._start_pty(spec) if spec.pty else self._start_pipes(spec)
        self.pid = self._popen.pid
        self._status = reaper.watch(self.pid)
        self._ended = False

    @property
    def running(self) -> bool:
        """Whether the command itself lives (its children may outlive it)."""
        return not self._status.done()

    async def finish(self) -> None:
        """Waits for the command, tells how it ended and hands over all its output."""
        status = await asyncio.shield(self._status)
        self._popen.returncode = os.waitstatus_to_exitcode(status)
        # Told at once, also while output waits for a slow client: the daemon ends a command that
        # takes too long, and is to know one that has ended in time.
        if not self._ended:
            self._tell(status)
        open_pumps = [pump.done for pump in self._pumps if not pump.done.done()]
        if open_pumps:
            await asyncio.wait(open_pumps, timeout=DRAIN_S)
        for pump in self._pumps:
            pump.last_call()
        # Not bounded in time by intent: a slow client gets everything. The channel's end closes
        # the pumps, which completes these.
        await asyncio.gather(*(pump.done for pump in self._pumps))
        if self._ended:
            return
        self._ended = True
        self._input.close()
        self._output.finished()

    def feed(self, data: bytes) -> None:
        """Bytes for its input."""
        self._input.feed(data)

    def end_input(self) -> None:
        """End of its input."""
        self._input.end()

    def pause(self) -> None:
        """The channel takes no more output for now."""
        for pump in self._pumps:
            pump.pause()

    def resume(self) -> None:
        """The channel takes output again."""
        for pump in self._pumps:
            pump.resume()

    def resize(self, size: tuple[int, int, int, int]) -> None:
        """New window size; without a terminal it means nothing."""
        if self._live_master is not None:
            terminal.resize(self._live_master, size)

    def send_break(self) -> bool:
        """A line break; False without a terminal."""
        if self._live_master is None:
            return False
        terminal.send_break(self._live_master)
        return True

    def signal(self, name: str) -> None:
        """Sends a signal (name without SIG) to the foreground group; unknown names do nothing."""
        number = getattr(signal, f"SIG{name}", None)
        if isinstance(number, signal.Signals) and self.running:
            for group in self._groups()[-1:]:
                _signal_group(group, number)

    def kill(self) -> None:
        """Ends what of it still runs, at once."""
        for group in self._groups() if self.running else ():
            _signal_group(group, signal.SIGKILL)

    async def abandon(self) -> None:
        """The channel is gone: lets go of everything, and ends the command if it still runs.

        A command that ended by itself may have left children behind on purpose; they live on.
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
        """The terminal's descriptor while it is open."""
        return None if self._master is None or self._pumps[0].done.done() else self._master

    def _groups(self) -> list[int]:
        """The command's own process group and, last, the terminal's foreground group."""
        groups = [self.pid]
        if self._live_master is not None:
            foreground = terminal.foreground_group(self._live_master)
            if foreground not in (None, self.pid):
                groups.append(foreground)
        return groups

    def _start_pty(self, spec: CommandSpec) -> subprocess.Popen[bytes]:
        if spec.pty is None:
            raise SpawnError("no terminal was asked for")
        try:
            master, slave = terminal.open_pair(spec.pty)
        except OSError as error:
            raise SpawnError(f"no terminal: {error.strerror}") from None
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


async def end_group(group: int) -> None:
    """Hangs a process group up; TERM and KILL for what stays. Returns when it is empty or killed.

    Bounded by HANGUP_S + TERMINATE_S.
    """
    for number, patience in ((signal.SIGHUP, HANGUP_S), (signal.SIGTERM, TERMINATE_S)):
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
    """The environment of a session: account and image first, then what was sent with it.

    What is sent is taken as given, because only the daemon can send it; names that no shell could
    hold are dropped.
    """
    env = {
        "PATH": f"{DEFAULT_PATH}:{protocol.RUNTIME_DIR}/bin",
        "LANG": "C.UTF-8",
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": account.shell,
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
        # Without a function to run in the child the interpreter uses vfork, which makes a start
        # three times as fast; only terminals need one.
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
    """Program, arguments and environment of a command. Raises SpawnError."""
    if spec.sealed_for is not None:
        try:
            arguments = command_of("box_guest.handover")
        except (OSError, ValueError) as error:
            raise SpawnError(f"the program that hands over is not found: {error}") from None
        # Variables of the image and the session mean something to loaders and libraries: they are
        # for the command.
        return arguments[0], arguments, {}
    shell, command = _shell(spec.account), encoded(spec.command)
    name = Path(shell).name
    arguments = [f"-{name}".encode()] if command is None else [name.encode(), b"-c", command]
    return shell, arguments, spec.env


def _shell(account: Account) -> str:
    return account.shell if os.access(account.shell, os.X_OK) else "/bin/sh"


def _first_frame(spec: CommandSpec, box_id: str) -> bytes:
    """What the program that hands over is told by the agent. Raises SpawnError."""
    try:
        words = [box_id.encode(), os.fsencode(_shell(spec.account)), *frames.variables(spec.env)]
        return frames.framed(frames.joined(words))
    except ValueError as error:
        raise SpawnError(f"the environment of the session: {error}") from None


def _offer(pid: int) -> None:
    """Makes a new process, and what it will start, the first to end for want of memory."""
    try:
        handle = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return  # it has ended, or this is no box of ours
    try:
        os.write(handle, FIRST_TO_DIE)
    except OSError:
        return
    finally:
        os.close(handle)


def _take_terminal() -> None:
    """In the child, after it became a session leader: makes the terminal its own."""
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
