"""Protocol adapter only. Relays one SSH session channel between the client and the box.

All messages of a session channel pass through here, in order and in both directions. The client
gets exit status and signal when the box's channel has closed and all its output has been sent. Data
passes from callback to callback without a task or another copy. A full buffer on one side stops
reading on the other side.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import asyncssh

from box_guest.shared.agent_request import AgentRequest
from box_guest.shared.command_bytes import encoded
from box_guest.shared.environment import SESSION, filtered
from boxd.errors import Unavailable
from boxd.model.progress import Progress
from boxd.ssh.connection.agent_forward import forwarded_agent
from boxd.ssh.connection.session import Exit, Session, guarded
from boxd.tunnel.channel import FAULTS
from boxd.tunnel.opening import opened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from boxd.boxes.lifecycle.holds import Attachment
    from boxd.ssh.connection.session import Channel
    from boxd.tasks import BackgroundTasks

    Attach = Callable[[str, Progress], AbstractAsyncContextManager[Attachment]]
    """Attaches to the box. Arguments: the reason, and the receiver of progress reports."""

BOX_WINDOW = 512 * 1024
BOX_PACKET = 128 * 1024
MAX_EARLY_SIGNALS = 16
"""Maximum number of signals that are stored until the box's channel is open."""


class BoxSession(asyncssh.SSHClientSession[bytes]):
    """The channel to the box."""

    def __init__(self, relay: RelaySession) -> None:
        self._relay = relay
        self._exit: Exit | None = None
        self._pipe_signalled = False
        self.chan: asyncssh.SSHClientChannel[bytes]

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """Store the open channel."""
        self.chan = chan

    @guarded(None)
    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Send output of the box to the client."""
        if datatype is None and self._relay.stdout_unread:
            self._signal_broken_pipe()
            return
        client = self._relay.chan
        if not client.is_closing():
            client.write(data, datatype)

    def eof_received(self) -> bool:
        """Ignore the end of output; the exit status implies it.

        OpenSSH closes a channel that has ended in both directions, and asyncssh answers with a
        close at once. So passing on the end of output could lose a status after it: *measured*, in
        8 of 100 runs of `echo`.
        """
        return True

    @guarded(None)
    def pause_writing(self) -> None:
        """Stop reading from the client, because the box does not read fast enough."""
        self._relay.chan.pause_reading()

    @guarded(None)
    def resume_writing(self) -> None:
        """Read from the client again, because the box reads again."""
        if not self._relay.closed:
            self._relay.chan.resume_reading()

    @guarded(None)
    def xon_xoff_requested(self, client_can_do: bool) -> None:
        """Pass on whether the client's terminal may do flow control."""
        self._relay.chan.set_xon_xoff(client_can_do)

    def exit_status_received(self, status: int) -> None:
        """Store the exit status until all output has been sent."""
        self._exit = Exit(status=status)

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        """Store the exit signal until all output has been sent."""
        self._exit = Exit(signal=(signal, core_dumped, msg, lang))

    @guarded(None)
    def connection_lost(self, exc: Exception | None) -> None:
        """Finish the session: the box's channel has closed, so no more output follows."""
        self._relay.box_session_closed(self._exit)

    def abort(self) -> None:
        """End this channel at once."""
        self.chan.abort()

    def _signal_broken_pipe(self) -> None:
        """Send the signal that a local pipe without a reader would send to the command."""
        if not self._pipe_signalled:
            self._pipe_signalled = True
            self.chan.send_signal("PIPE")


class RelaySession(Session):
    """The client's channel.

    Critical sections: none. `_box` is set between two callbacks, after all earlier input was
    written to the box. Until then input waits in `_early_input`, and one packet stops reading. The
    channel's window limits the rest.
    """

    kind = "session"

    def __init__(
        self, tasks: BackgroundTasks, on_closed: Callable[[], None], attach: Attach
    ) -> None:
        super().__init__(tasks, on_closed)
        self._attach = attach
        self._command: str | None = None
        self._subsystem: str | None = None
        self._box: BoxSession | None = None
        self._loss_reason: Callable[[], str] = str
        self._early_input: list[bytes] = []
        self._early_signals: list[str] = []
        self._input_ended = False
        self._output_paused = False
        self.stdout_unread = False
        """The client's stdout has no reader."""
        self._box_closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._agent: AgentRequest

    def connection_made(self, chan: Channel) -> None:
        """Store the open channel, and watch for a request for the client's agent."""
        super().connection_made(chan)
        self._agent = AgentRequest(chan)

    @guarded(False)
    def exec_requested(self, command: str) -> bool:
        """Store the command. For an empty one, asyncssh would ask the box for a shell."""
        self._command = command or " "
        return True

    @guarded(False)
    def subsystem_requested(self, subsystem: str) -> bool:
        """Store the subsystem; grant only file transfer."""
        self._subsystem = subsystem
        return super().subsystem_requested(subsystem)

    @guarded(None)
    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Send input of the client to the box."""
        if self._box is None:
            self._early_input.append(data)
            self.chan.pause_reading()
        elif not self._box.chan.is_closing():
            self._box.chan.write(data)

    @guarded(True)
    def eof_received(self) -> bool:
        """Pass on the end of input; the channel stays open for output."""
        self._input_ended = True
        if self._box is not None:
            self._box.chan.write_eof()
        return True

    @guarded(None)
    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        """Pass on the terminal size. asyncssh stores it until the box's channel is open."""
        if self._box is not None:
            self._box.chan.change_terminal_size(width, height, pixwidth, pixheight)

    def stop_stdout(self) -> None:
        """Discard stdout, because it has no reader. Stderr and exit status still count."""
        self.stdout_unread = True

    @guarded(None)
    def signal_received(self, signal: str) -> None:
        """Pass on a signal for the command."""
        if self._box is not None:
            self._box.chan.send_signal(signal)
        elif len(self._early_signals) < MAX_EARLY_SIGNALS:
            self._early_signals.append(signal)

    @guarded(False)
    def break_received(self, msec: int) -> bool:
        """Pass on a break for the command."""
        if self._box is not None:
            self._box.chan.send_break(msec)
        return self._box is not None

    @guarded(None)
    def pause_writing(self) -> None:
        """Stop reading from the box, because the client does not read fast enough."""
        self._output_paused = True
        if self._box is not None:
            self._box.chan.pause_reading()

    @guarded(None)
    def resume_writing(self) -> None:
        """Read from the box again, because the client reads again."""
        self._output_paused = False
        super().resume_writing()
        if self._box is not None and not self._box_closed.done():
            self._box.chan.resume_reading()

    async def run(self) -> Exit:
        """Open the box's channel, and hold the attachment until it has closed."""
        progress = Progress.in_lines(self._note, self._progress)
        if self.pty:
            progress = replace(progress, on_hint=self._note)
        async with self._attach(self._why(), progress) as attachment:
            tunnel = attachment.tunnel
            self._loss_reason = lambda: attachment.lost
            async with forwarded_agent(tunnel, self._agent.path) as agent_env:
                box = await self._open(tunnel.connection, attachment.env, agent_env)
                try:
                    self._connect(box)
                    await self._box_closed
                    if self._box is None and self._exit is None:
                        # The box was lost before `_connect`, so the client has no reason yet.
                        self.write_stderr_line(self._loss_reason())
                finally:
                    # Not close(): it would wait for input that the box may never read.
                    box.abort()
        return Exit()

    def box_session_closed(self, session_exit: Exit | None) -> None:
        """Finish the session after all output of the box; None: the box sent no exit status."""
        if not self._box_closed.done():
            self._box_closed.set_result(None)
        if session_exit is None and self._box is not None:
            self.write_stderr_line(self._loss_reason())
        if session_exit is not None or self._box is not None:
            self.finish(session_exit or Exit())

    async def _open(
        self,
        connection: asyncssh.SSHClientConnection,
        attachment_env: Mapping[str, str],
        agent_env: dict[bytes, bytes],
    ) -> BoxSession:
        chan, box = self.chan, BoxSession(self)
        defaults = {os.fsencode(name): os.fsencode(value) for name, value in attachment_env.items()}
        env = {**defaults, **filtered(chan.get_environment_bytes()), **SESSION, **agent_env}
        try:
            opening = connection.create_session(
                lambda: box,
                # Bytes, which asyncssh sends without a conversion.
                command=cast("str | None", encoded(self._command)),
                subsystem=self._subsystem,
                env=list(env.items()),
                request_pty="force" if self.pty else False,
                term_type=chan.get_terminal_type(),
                term_size=chan.get_terminal_size(),
                term_modes=chan.get_terminal_modes(),
                encoding=None,
                window=BOX_WINDOW,
                max_pktsize=BOX_PACKET,
            )
            await opened(opening, lambda pair: pair[0].abort())
        except FAULTS as error:
            raise Unavailable(f"the box did not open a session: {error}; try again") from error
        return box

    def _connect(self, box: BoxSession) -> None:
        """Send all earlier messages to the box; later ones pass directly."""
        if box.chan.is_closing():
            return
        size = self.chan.get_terminal_size()
        if self.pty:
            box.chan.change_terminal_size(*size)
        for data in self._early_input:
            box.chan.write(data)
        self._early_input.clear()
        for signal in self._early_signals:
            box.chan.send_signal(signal)
        if self._input_ended:
            box.chan.write_eof()
        self._box = box
        self.chan.resume_reading()
        if self._output_paused:
            box.chan.pause_reading()

    def _why(self) -> str:
        """Return the reason of the attachment."""
        if self._subsystem is not None:
            return self._subsystem
        return "shell" if self._command is None else "command"

    def _note(self, line: str) -> None:
        """Write a line for people to stderr, except in a file transfer, which has no reader."""
        if self._subsystem is None:
            self.write_stderr_line(line)

    def _progress(self, line: str) -> None:
        """Write the current step to stderr, at a terminal only: a program expects errors there."""
        if self.pty:
            self._note(line)
