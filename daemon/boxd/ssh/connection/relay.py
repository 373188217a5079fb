"""Protocol adapter only. One SSH session channel, from the client's end to the box's end.

Every message of a session channel crosses here, in order and in both directions. Exit status and
signal are sent when the box's channel has closed and everything it wrote has been sent on. Data
are handed from callback to callback without a task or a copy of ours; a full buffer on one side
stops reading on the other.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, cast

import asyncssh

from box_guest.shared.agent_request import AgentWish
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

UPSTREAM_WINDOW = 512 * 1024
UPSTREAM_PACKET = 128 * 1024
MAX_EARLY_SIGNALS = 16


class BoxEnd(asyncssh.SSHClientSession[bytes]):
    """The channel to the box."""

    def __init__(self, relay: RelaySession) -> None:
        self._relay = relay
        self._exit: Exit | None = None
        self._pipe_broken = False
        self.chan: asyncssh.SSHClientChannel[bytes]

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """The channel is open; nothing is asked for yet."""
        self.chan = chan

    @guarded(None)
    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Output of the box."""
        if datatype is None and self._relay.deaf:
            self._break_pipe()
            return
        down = self._relay.chan
        if not down.is_closing():
            down.write(data, datatype)

    def eof_received(self) -> bool:
        """Output has ended; the client learns it with the exit status.

        OpenSSH closes a channel that has ended both ways, and asyncssh answers a close with a
        close at once: a status that came after the end was lost in 8 of 100 runs of `echo`.
        """
        return True

    @guarded(None)
    def pause_writing(self) -> None:
        """The box does not read fast enough."""
        self._relay.chan.pause_reading()

    @guarded(None)
    def resume_writing(self) -> None:
        """The box reads again."""
        if not self._relay.gone:
            self._relay.chan.resume_reading()

    @guarded(None)
    def xon_xoff_requested(self, client_can_do: bool) -> None:
        """Whether the client's terminal may do flow control."""
        self._relay.chan.set_xon_xoff(client_can_do)

    def exit_status_received(self, status: int) -> None:
        """Kept until all output has been sent on."""
        self._exit = Exit(status=status)

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        """Kept until all output has been sent on."""
        self._exit = Exit(signal=(signal, core_dumped, msg, lang))

    @guarded(None)
    def connection_lost(self, exc: Exception | None) -> None:
        """The box's channel has closed; no more output comes."""
        self._relay.box_closed(self._exit)

    def abort(self) -> None:
        """Ends this channel at once."""
        self.chan.abort()

    def _break_pipe(self) -> None:
        """The command writes to nobody, which a local pipe would answer with this signal."""
        if not self._pipe_broken:
            self._pipe_broken = True
            self.chan.send_signal("PIPE")


class RelaySession(Session):
    """The client's channel.

    Critical sections: none. `_up` is set between two callbacks, after what came before it was
    written to the box; until then input waits in `_early`, where one packet stops reading, so that
    the channel's window bounds the rest.
    """

    def __init__(
        self, tasks: BackgroundTasks, released: Callable[[], None], attach: Attach
    ) -> None:
        super().__init__(tasks, released)
        self._attach = attach
        self._command: str | None = None
        self._subsystem: str | None = None
        self._up: BoxEnd | None = None
        self._lost: Callable[[], str] = str
        self._early: list[bytes] = []
        self._early_signals: list[str] = []
        self._input_ended = False
        self._held = False
        self.deaf = False
        """The client's reader of stdout has gone."""
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._agent: AgentWish

    def connection_made(self, chan: Channel) -> None:
        """The channel is open; nothing is asked for yet."""
        super().connection_made(chan)
        self._agent = AgentWish(chan)

    @guarded(False)
    def exec_requested(self, command: str) -> bool:
        """Takes the command. asyncssh would ask the box for a shell if it were empty."""
        self._command = command or " "
        return True

    @guarded(False)
    def subsystem_requested(self, subsystem: str) -> bool:
        """Takes a file transfer; nothing else has a meaning in a box."""
        self._subsystem = subsystem
        return super().subsystem_requested(subsystem)

    @guarded(None)
    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Input of the client."""
        if self._up is None:
            self._early.append(data)
            self.chan.pause_reading()
        elif not self._up.chan.is_closing():
            self._up.chan.write(data)

    @guarded(True)
    def eof_received(self) -> bool:
        """The client's input has ended; output goes on."""
        self._input_ended = True
        if self._up is not None:
            self._up.chan.write_eof()
        return True

    @guarded(None)
    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        """The client's window has another size; before the box is there asyncssh keeps it."""
        if self._up is not None:
            self._up.chan.change_terminal_size(width, height, pixwidth, pixheight)

    def output_unwanted(self) -> None:
        """Nobody reads the client's stdout any more; stderr and status still count."""
        self.deaf = True

    @guarded(None)
    def signal_received(self, signal: str) -> None:
        """A signal for the command."""
        if self._up is not None:
            self._up.chan.send_signal(signal)
        elif len(self._early_signals) < MAX_EARLY_SIGNALS:
            self._early_signals.append(signal)

    @guarded(False)
    def break_received(self, msec: int) -> bool:
        """A break for the command."""
        if self._up is not None:
            self._up.chan.send_break(msec)
        return self._up is not None

    @guarded(None)
    def pause_writing(self) -> None:
        """The client does not read fast enough."""
        self._held = True
        if self._up is not None:
            self._up.chan.pause_reading()

    @guarded(None)
    def resume_writing(self) -> None:
        """The client reads again."""
        self._held = False
        super().resume_writing()
        if self._up is not None and not self._closed.done():
            self._up.chan.resume_reading()

    async def run(self) -> Exit:
        """Attaches, opens the box's channel and holds the attachment until it has closed."""
        progress = Progress.in_lines(self._note, self._progress)
        async with self._attach(self._why(), progress) as attachment:
            tunnel = attachment.tunnel
            self._lost = lambda: attachment.lost
            async with forwarded_agent(tunnel, self._agent.path) as agent_env:
                up = await self._open(tunnel.connection, attachment.env, agent_env)
                try:
                    self._connect(up)
                    await self._closed
                    if self._up is None and self._exit is None:
                        # Lost when it was open and nobody had been told of it.
                        self.tell(self._lost())
                finally:
                    # Not close(): it would wait for input that the box may never read.
                    up.abort()
        return Exit()

    def box_closed(self, how: Exit | None) -> None:
        """All output of the box has come."""
        if not self._closed.done():
            self._closed.set_result(None)
        if how is None and self._up is not None:
            self.tell(self._lost())
        if how is not None or self._up is not None:
            self.finish(how or Exit())

    async def _open(
        self,
        connection: asyncssh.SSHClientConnection,
        given: Mapping[str, str],
        agent_env: dict[bytes, bytes],
    ) -> BoxEnd:
        chan, up = self.chan, BoxEnd(self)
        beneath = {os.fsencode(name): os.fsencode(value) for name, value in given.items()}
        env = {**beneath, **filtered(chan.get_environment_bytes()), **SESSION, **agent_env}
        try:
            opening = connection.create_session(
                lambda: up,
                # Bytes, which asyncssh passes on as they are.
                command=cast("str | None", encoded(self._command)),
                subsystem=self._subsystem,
                env=list(env.items()),
                request_pty="force" if self.pty else False,
                term_type=chan.get_terminal_type(),
                term_size=chan.get_terminal_size(),
                term_modes=chan.get_terminal_modes(),
                encoding=None,
                window=UPSTREAM_WINDOW,
                max_pktsize=UPSTREAM_PACKET,
            )
            await opened(opening, lambda pair: pair[0].abort())
        except FAULTS as error:
            raise Unavailable(f"the box did not open a session: {error}; try again") from error
        return up

    def _connect(self, up: BoxEnd) -> None:
        """From here on messages go straight through; what came before goes first."""
        if up.chan.is_closing():
            return
        size = self.chan.get_terminal_size()
        if self.pty:
            up.chan.change_terminal_size(*size)
        for data in self._early:
            up.chan.write(data)
        self._early.clear()
        for signal in self._early_signals:
            up.chan.send_signal(signal)
        if self._input_ended:
            up.chan.write_eof()
        self._up = up
        self.chan.resume_reading()
        if self._held:
            up.chan.pause_reading()

    def _why(self) -> str:
        if self._subsystem is not None:
            return self._subsystem
        return "shell" if self._command is None else "command"

    def _note(self, line: str) -> None:
        """For people, on stderr; a file transfer has nobody who reads it."""
        if self._subsystem is None:
            self.tell(line)

    def _progress(self, line: str) -> None:
        """What a person at a terminal waits for; a program would take it for an error."""
        if self.pty:
            self._note(line)
