"""SSH session channels of a box: shells, commands and file transfers.

Protocol adapter only. In asyncssh, an exception that leaves a callback or a task closes the whole
connection. In the tunnel, that connection carries every channel of the box. So a guard wraps every
callback of a session; it logs the exception and closes only the channel that the callback belongs
to.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import asyncssh
from asyncssh.constants import DEFAULT_LANG
from asyncssh.packet import Boolean, String, UInt32

from box_guest.errors import SpawnError
from box_guest.process import accounts
from box_guest.process.process import Command, CommandSpec, session_env
from box_guest.process.terminal import PtyRequest
from box_guest.ssh.sftp import TransferSession

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from typing import Any

    from box_guest.config import AgentConfig
    from box_guest.control.link import DaemonLink
    from box_guest.process.background import BackgroundCommands
    from box_guest.process.file_watch import FileWatch
    from box_guest.process.process import Reaper
    from box_guest.ssh.forward import DriveGate, ForwardDir

    ServerChannel = asyncssh.SSHServerChannel[bytes]

logger = logging.getLogger(__name__)

SPAWN_FAILED = 127
"""Exit status if the command could not be started."""
CLOSE_LOOK_S = 0.5
"""Seconds between two checks for the close of a channel with paused input."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Services:
    """Collaborators that SSH sessions share. `background` runs a task that outlives its channel."""

    config: AgentConfig
    link: DaemonLink
    reaper: Reaper
    forwards: ForwardDir
    gate: DriveGate
    background: Callable[[Coroutine[Any, Any, None]], None]
    background_commands: BackgroundCommands
    commands: set[Command] = field(default_factory=set)
    watches: set[FileWatch] = field(default_factory=set)
    """Open file watches: a checkpoint is simpler without them."""

    def pids(self) -> set[int]:
        """Return the process ids of the commands that clients of the daemon have started."""
        return {command.pid for command in self.commands} | self.background_commands.pids

    def close_watches(self) -> None:
        """Close all file watches; their clients start new ones."""
        for watch in list(self.watches):
            watch.close()


def _guarded(
    fallback: _T,
) -> Callable[
    [Callable[Concatenate[BoxSession, _P], _T]], Callable[Concatenate[BoxSession, _P], _T]
]:
    """Turn an exception of a callback into the end of its channel, and return `fallback`."""

    def decorate(
        callback: Callable[Concatenate[BoxSession, _P], _T],
    ) -> Callable[Concatenate[BoxSession, _P], _T]:
        @wraps(callback)
        def guarded(session: BoxSession, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
            try:
                return callback(session, *args, **kwargs)
            except Exception as error:
                session.fail(error)
                return fallback

        return guarded

    return decorate


class BoxSession(asyncssh.SSHServerSession[bytes]):
    """One SSH session channel.

    It picks its handler when it starts and passes later events to it.
    """

    def __init__(self, services: Services) -> None:
        self.services = services
        self._chan: ServerChannel | None = None
        self._pty: PtyRequest | None = None
        self.handler: asyncssh.SSHServerSession[bytes] = asyncssh.SSHServerSession()

    def fail(self, error: Exception) -> None:
        """Log an internal error and close the channel; the connection stays."""
        logger.error("an SSH session failed", exc_info=error)
        if self._chan is not None:
            self._chan.abort()

    def connection_made(self, chan: ServerChannel) -> None:
        """Note the channel."""
        self._chan = chan

    @_guarded(False)
    def pty_requested(
        self, term_type: str, term_size: tuple[int, int, int, int], term_modes: Mapping[int, int]
    ) -> bool:
        """Accept a terminal: its type, its size and its modes by opcode.

        The size is columns, rows, and width and height in pixels.
        """
        self._pty = PtyRequest(term_type, term_size, dict(term_modes))
        return True

    def shell_requested(self) -> bool:
        """Accept a login shell."""
        return True

    def exec_requested(self, command: str) -> bool:
        """Accept any command without a NUL character."""
        return "\0" not in command

    def subsystem_requested(self, subsystem: str) -> bool:
        """Accept the subsystem sftp only."""
        return subsystem == "sftp"

    @_guarded(None)
    def session_started(self) -> None:
        """Choose the handler and start it."""
        if self._chan is None:
            return
        self.handler = self.choose(self._chan)
        self.handler.connection_made(self._chan)
        self.handler.session_started()

    @_guarded(None)
    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Pass input to the handler."""
        self.handler.data_received(data, datatype)

    @_guarded(True)
    def eof_received(self) -> bool:
        """Pass the end of input to the handler; keep the channel open for output."""
        self.handler.eof_received()
        return True

    @_guarded(None)
    def pause_writing(self) -> None:
        """Pause the handler's output."""
        self.handler.pause_writing()

    @_guarded(None)
    def resume_writing(self) -> None:
        """Resume the handler's output."""
        self.handler.resume_writing()

    @_guarded(None)
    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        """Pass the new window size to the handler."""
        self.handler.terminal_size_changed(width, height, pixwidth, pixheight)

    @_guarded(None)
    def signal_received(self, signal: str) -> None:
        """Pass a signal (name without SIG) to the handler."""
        self.handler.signal_received(signal)

    @_guarded(False)
    def break_received(self, msec: int) -> bool:
        """Pass a line break to the handler; return whether it had an effect."""
        return self.handler.break_received(msec)

    @_guarded(None)
    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the handler that the channel is closed."""
        self.handler.connection_lost(exc)

    def sent(self, chan: ServerChannel) -> Mapping[bytes, bytes]:
        """Return the environment variables that the client sent with the session."""
        return chan.get_environment_bytes()

    def choose(self, chan: ServerChannel) -> asyncssh.SSHServerSession[bytes]:
        """Return the handler for the request that the client has made."""
        account = accounts.find(self.services.config.user)
        command = chan.get_command()
        env = session_env(account, self.services.config, self.sent(chan))
        if chan.get_subsystem() == "sftp":
            return TransferSession(account.home, self.fail)
        if command is not None and _is_scp(command) and not _has_scp(env["PATH"]):
            return TransferSession(account.home, self.fail)
        return CommandSession(self.services, CommandSpec(account, command, env, self._pty))


class CommandSession(asyncssh.SSHServerSession[bytes]):
    """Runs a shell or command on a channel."""

    def __init__(self, services: Services, spec: CommandSpec) -> None:
        self._services = services
        self._spec = spec
        self._chan: ServerChannel | None = None
        self._output: _ChannelOutput | None = None
        self._command: Command | None = None

    def connection_made(self, chan: ServerChannel) -> None:
        """Note the channel."""
        self._chan = chan

    def session_started(self) -> None:
        """Start the command.

        If that fails, write the reason to stderr and exit with SPAWN_FAILED.
        """
        if self._chan is None:
            return
        self._output = _ChannelOutput(self._chan)
        try:
            command = Command(self._spec, self._output, self._services.reaper)
        except SpawnError as error:
            self._chan.write_stderr(f"{error}\n".encode())
            self._chan.exit(SPAWN_FAILED)
            return
        self._command = command
        self._services.commands.add(command)
        self._services.background(self._finish(command))

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Write to the command's input."""
        if self._command is not None:
            self._command.feed(data)

    def eof_received(self) -> bool:
        """Close the command's input; keep the channel open for output."""
        if self._command is not None:
            self._command.end_input()
        return True

    def pause_writing(self) -> None:
        """Stop reading the command's output."""
        if self._command is not None:
            self._command.pause()

    def resume_writing(self) -> None:
        """Continue to read the command's output."""
        if self._command is not None:
            self._command.resume()

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        """Set the terminal's window size."""
        if self._command is not None:
            self._command.resize((width, height, pixwidth, pixheight))

    def signal_received(self, signal: str) -> None:
        """Send a signal (name without SIG) to the command."""
        if self._command is not None:
            self._command.signal(signal)

    def break_received(self, msec: int) -> bool:
        """Send a line break to the terminal; return False without one."""
        return self._command is not None and self._command.send_break()

    def output_unwanted(self) -> None:
        """Send the command SIGPIPE at its next byte of stdout, as a pipe without a reader does."""
        if self._output is not None and self._command is not None:
            self._output.unwanted = partial(self._command.signal, "PIPE")

    def connection_lost(self, exc: Exception | None) -> None:
        """End the command if it still runs."""
        if self._output is not None:
            self._output.lost()
        if self._command is not None:
            self._services.background(self._command.abandon())

    async def _finish(self, command: Command) -> None:
        try:
            await command.finish()
        finally:
            self._services.commands.discard(command)


class _ChannelOutput:
    """Adapts a channel to `process.Output`; output after the channel's end is dropped."""

    def __init__(self, chan: ServerChannel) -> None:
        self._chan = chan
        self._lost = False
        self._look: asyncio.TimerHandle | None = None
        self.unwanted: Callable[[], None] | None = None
        """Called instead of writing to stdout."""

    def write(self, data: bytes, *, stderr: bool) -> None:
        if self.unwanted is not None and not stderr:
            self.unwanted()
        elif not self._chan.is_closing():
            self._chan.write(data, asyncssh.EXTENDED_DATA_STDERR if stderr else None)

    def lost(self) -> None:
        """Record that the channel is closed: asyncssh fails if such a channel resumes reading."""
        self._lost = True
        self._stop_looking()

    def hold_input(self, held: bool) -> None:
        if self._lost:
            return
        if held:
            self._chan.pause_reading()
            self._look_for_close()
        else:
            self._stop_looking()
            self._chan.resume_reading()

    def _look_for_close(self) -> None:
        """Check whether the peer has closed the channel: a paused channel does not report it."""
        if self._chan.is_closing():
            self._chan.abort()
        else:
            self._look = asyncio.get_running_loop().call_later(CLOSE_LOOK_S, self._look_for_close)

    def _stop_looking(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def exited(self, code: int) -> None:
        self._tell(b"exit-status", UInt32(code))

    def killed(self, name: str, core_dumped: bool) -> None:
        text, language = String(""), String(DEFAULT_LANG)
        self._tell(b"exit-signal", String(name), Boolean(core_dumped), text, language)

    def finished(self) -> None:
        self._stop_looking()
        if not self._chan.is_closing():
            self._chan.write_eof()
            self._chan.close()

    def _tell(self, kind: bytes, *fields: bytes) -> None:
        """Send a request that asyncssh sends only together with the close of the channel."""
        if not self._chan.is_closing():
            self._chan._send_request(kind, *fields)


def _is_scp(command: str) -> bool:
    return command.startswith("scp ")


def _has_scp(path: str) -> bool:
    return any(os.access(f"{directory}/scp", os.X_OK) for directory in path.split(":"))
