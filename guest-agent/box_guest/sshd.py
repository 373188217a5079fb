"""The agent's SSH server as the daemon sees it: which requests are served, and by what.

Protocol adapter only. In asyncssh an exception that leaves a callback or a task closes the whole
connection, which here is every channel of the box. So every callback of an SSH session goes
through a guard that logs and closes the one channel it belongs to.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

import asyncssh

from box_guest import accounts, forward, protocol
from box_guest.backpressure import Backpressure
from box_guest.commandbytes import take_any_command
from box_guest.errors import SpawnError
from box_guest.process import Command, CommandSpec, session_env
from box_guest.sftp import TransferSession
from box_guest.terminal import PtyRequest
from box_guest.wire import send_no_padding

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping
    from typing import Any

    from box_guest.config import AgentConfig
    from box_guest.link import DaemonLink
    from box_guest.process import Reaper

    ServerChannel = asyncssh.SSHServerChannel[bytes]

logger = logging.getLogger(__name__)

SPAWN_FAILED = 127
CLOSE_LOOK_S = 0.5
"""How often a channel whose input is held is looked at for its end."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Services:
    """What SSH sessions share. `background` runs a task that outlives its channel."""

    config: AgentConfig
    link: DaemonLink
    reaper: Reaper
    forwards: forward.ForwardDir
    gate: forward.DriveGate
    background: Callable[[Coroutine[Any, Any, None]], None]
    commands: set[Command] = field(default_factory=set)


class BoxServer(asyncssh.SSHServer):
    """One tunnel: sessions and forwards of the box. Only the daemon's key gets this far."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        Backpressure(conn)
        send_no_padding(conn)

    def session_requested(
        self,
    ) -> bool | tuple[ServerChannel, asyncssh.SSHServerSession[bytes]]:
        if self._connection is None:
            return False
        chan = self._connection.create_server_channel()
        take_any_command(chan)
        return chan, BoxSession(self._services)

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> Awaitable[asyncssh.SSHTCPSession[bytes]]:
        # A forwarder stands for the session, as asyncssh itself does it.
        return cast("Awaitable[asyncssh.SSHTCPSession[bytes]]", forward.dial(dest_host, dest_port))

    def unix_connection_requested(
        self, dest_path: str
    ) -> Awaitable[asyncssh.SSHUNIXSession[bytes]]:
        return cast("Awaitable[asyncssh.SSHUNIXSession[bytes]]", forward.dial_unix(dest_path))

    async def unix_server_requested(self, listen_path: str) -> asyncssh.SSHListener | bool:
        if self._connection is None:
            return False
        if listen_path in (protocol.DRIVE_META, protocol.DRIVE_BLOCKS):
            return self._services.gate.offered(self._connection, listen_path)
        return await self._services.forwards.listen(self._connection, listen_path)


def _guarded(
    fallback: _T,
) -> Callable[
    [Callable[Concatenate[BoxSession, _P], _T]], Callable[Concatenate[BoxSession, _P], _T]
]:
    """Turns any exception of a callback into the end of its channel, and `fallback`."""

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
    """One SSH session channel. What it does is known when it starts; the rest is passed on."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._chan: ServerChannel | None = None
        self._pty: PtyRequest | None = None
        self._handler: asyncssh.SSHServerSession[bytes] = asyncssh.SSHServerSession()

    def fail(self, error: Exception) -> None:
        """Something of ours went wrong: the channel ends, the connection stays."""
        logger.error("an SSH session failed", exc_info=error)
        if self._chan is not None:
            self._chan.abort()

    def connection_made(self, chan: ServerChannel) -> None:
        self._chan = chan

    @_guarded(False)
    def pty_requested(
        self, term_type: str, term_size: tuple[int, int, int, int], term_modes: Mapping[int, int]
    ) -> bool:
        self._pty = PtyRequest(term_type, term_size, dict(term_modes))
        return True

    def shell_requested(self) -> bool:
        return True

    def exec_requested(self, command: str) -> bool:
        return "\0" not in command

    def subsystem_requested(self, subsystem: str) -> bool:
        if subsystem == protocol.CONTROL_SUBSYSTEM:
            return not self._services.link.up
        return subsystem == "sftp"

    @_guarded(None)
    def session_started(self) -> None:
        if self._chan is None:
            return
        self._handler = self._choose(self._chan)
        self._handler.connection_made(self._chan)
        self._handler.session_started()

    @_guarded(None)
    def data_received(self, data: bytes, datatype: int | None) -> None:
        self._handler.data_received(data, datatype)

    @_guarded(True)
    def eof_received(self) -> bool:
        self._handler.eof_received()
        return True

    @_guarded(None)
    def pause_writing(self) -> None:
        self._handler.pause_writing()

    @_guarded(None)
    def resume_writing(self) -> None:
        self._handler.resume_writing()

    @_guarded(None)
    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        self._handler.terminal_size_changed(width, height, pixwidth, pixheight)

    @_guarded(None)
    def signal_received(self, signal: str) -> None:
        self._handler.signal_received(signal)

    @_guarded(False)
    def break_received(self, msec: int) -> bool:
        return self._handler.break_received(msec)

    @_guarded(None)
    def connection_lost(self, exc: Exception | None) -> None:
        self._handler.connection_lost(exc)

    def _choose(self, chan: ServerChannel) -> asyncssh.SSHServerSession[bytes]:
        subsystem = chan.get_subsystem()
        if subsystem == protocol.CONTROL_SUBSYSTEM:
            return ControlSession(self._services.link)
        account = accounts.find(self._services.config.user)
        command = chan.get_command()
        env = session_env(account, self._services.config, chan.get_environment_bytes())
        if subsystem == "sftp":
            return TransferSession(account.home, self.fail)
        if command is not None and _is_scp(command) and not _has_scp(env["PATH"]):
            return TransferSession(account.home, self.fail)
        return CommandSession(self._services, CommandSpec(account, command, env, self._pty))


class CommandSession(asyncssh.SSHServerSession[bytes]):
    """A shell or command on a channel."""

    def __init__(self, services: Services, spec: CommandSpec) -> None:
        self._services = services
        self._spec = spec
        self._chan: ServerChannel | None = None
        self._command: Command | None = None

    def connection_made(self, chan: ServerChannel) -> None:
        self._chan = chan

    def session_started(self) -> None:
        if self._chan is None:
            return
        try:
            command = Command(self._spec, _ChannelOutput(self._chan), self._services.reaper)
        except SpawnError as error:
            self._chan.write_stderr(f"{error}\n".encode())
            self._chan.exit(SPAWN_FAILED)
            return
        self._command = command
        self._services.commands.add(command)
        self._services.background(self._finish(command))

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if self._command is not None:
            self._command.feed(data)

    def eof_received(self) -> bool:
        if self._command is not None:
            self._command.end_input()
        return True

    def pause_writing(self) -> None:
        if self._command is not None:
            self._command.pause()

    def resume_writing(self) -> None:
        if self._command is not None:
            self._command.resume()

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        if self._command is not None:
            self._command.resize((width, height, pixwidth, pixheight))

    def signal_received(self, signal: str) -> None:
        if self._command is not None:
            self._command.signal(signal)

    def break_received(self, msec: int) -> bool:
        return self._command is not None and self._command.send_break()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._command is not None:
            self._services.background(self._command.abandon())

    async def _finish(self, command: Command) -> None:
        try:
            await command.finish()
        finally:
            self._services.commands.discard(command)


class ControlSession(asyncssh.SSHServerSession[bytes]):
    """The control channel: lines go to the link, a malformed one ends the tunnel."""

    def __init__(self, link: DaemonLink) -> None:
        self._link = link
        self._chan: ServerChannel | None = None

    def connection_made(self, chan: ServerChannel) -> None:
        self._chan = chan

    def session_started(self) -> None:
        if self._chan is not None and not self._link.attach(self._chan.write):
            self._chan.exit(1)
            self._chan = None

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if self._chan is None:
            return
        try:
            self._link.receive(data)
        except protocol.ProtocolError as error:
            logger.error("the control channel brought nonsense: %s", error)
            self._chan.get_connection().abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._chan is not None:
            self._link.detach()


class _ChannelOutput:
    """A channel as `process.Output`; what comes after its end is dropped."""

    def __init__(self, chan: ServerChannel) -> None:
        self._chan = chan
        self._look: asyncio.TimerHandle | None = None

    def write(self, data: bytes, *, stderr: bool) -> None:
        if not self._chan.is_closing():
            self._chan.write(data, asyncssh.EXTENDED_DATA_STDERR if stderr else None)

    def hold_input(self, held: bool) -> None:
        if held:
            self._chan.pause_reading()
            self._look_for_close()
        else:
            self._stop_looking()
            self._chan.resume_reading()

    def _look_for_close(self) -> None:
        """A channel that is not read does not tell that the other side closed it: looks at it."""
        if self._chan.is_closing():
            self._chan.abort()
        else:
            self._look = asyncio.get_running_loop().call_later(CLOSE_LOOK_S, self._look_for_close)

    def _stop_looking(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def exited(self, code: int) -> None:
        self._stop_looking()
        if not self._chan.is_closing():
            self._chan.write_eof()
            self._chan.exit(code)

    def killed(self, name: str, core_dumped: bool) -> None:
        self._stop_looking()
        if not self._chan.is_closing():
            self._chan.write_eof()
            self._chan.exit_with_signal(name, core_dumped)


def _is_scp(command: str) -> bool:
    return command.startswith("scp ")


def _has_scp(path: str) -> bool:
    return any(os.access(f"{directory}/scp", os.X_OK) for directory in path.split(":"))
