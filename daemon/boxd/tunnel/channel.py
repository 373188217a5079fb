"""One live tunnel, and what runs in it: commands and dialled connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import asyncssh
from asyncssh.constants import OPEN_REQUEST_SESSION_FAILED
from asyncssh.packet import PacketDecodeError

from box_guest import protocol
from boxd.errors import DialTimeout, NothingListening, Unavailable
from boxd.tunnel.control import checked_presence
from boxd.tunnel.opening import opened
from boxd.tunnel.stream import ChannelStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
    from typing import Any

    from boxd.model.presence import Presence
    from boxd.tunnel.control import ControlChannel, Hello
    from boxd.tunnel.stream import ByteStream

WINDOW = 512 * 1024
"""Receive window of a channel in bytes."""
PACKET = 128 * 1024
"""Maximum size of a packet, in bytes."""
TERMINAL_WINDOW = 128 * 1024
TERMINAL_PACKET = 32 * 1024
"""Window and largest packet of a channel with a terminal.

A terminal also buffers input, and all of it must fit into a MiB. With these values, its output is
equally fast (*measured*).
"""
OPEN_S = 30.0
"""Seconds after which an agent that does not answer the opening of a channel counts as absent."""
WRITE_BUFFER = 64 * 1024
"""Maximum size of command input that may wait here for the box, in bytes."""
CLOSE_S = 10.0
"""Seconds to wait for a channel to close; an agent ends a stubborn process group in less."""
FAULTS = (asyncssh.Error, PacketDecodeError, OSError, TimeoutError)
"""Exceptions of a failed channel opening. An agent may accept with a malformed message."""

Stream = Literal["stdout", "stderr"]
Taken: TypeAlias = "Coroutine[Any, Any, None]"


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a command ended: `code`, or the name of the `signal` (without SIG) that ended it."""

    code: int | None
    signal: str | None


@dataclass(frozen=True, slots=True)
class Terminal:
    """A terminal for a command: its type, and its size as (columns, rows)."""

    term: str
    size: tuple[int, int]


class ByteReader(Protocol):
    """The reading half of a dialled connection."""

    async def read(self, n: int = -1) -> bytes:
        """Return up to `n` bytes; empty at the end."""


class ByteWriter(Protocol):
    """The writing half of a dialled connection."""

    def write(self, data: bytes) -> None:
        """Queue bytes for sending."""

    def write_eof(self) -> None:
        """Send EOF after the queued bytes."""

    async def drain(self) -> None:
        """Wait until the queue is short again."""

    def close(self) -> None:
        """Close the connection."""

    async def wait_closed(self) -> None:
        """Wait until both sides have closed the connection."""


class Offer(Protocol):
    """A listener for connections from a box, until it is closed or the tunnel goes down."""

    def close(self) -> None:
        """Accept no more connections."""


class Tunnel:
    """The connection of one box's agent after its hello."""

    def __init__(
        self,
        box_id: str,
        connection: asyncssh.SSHClientConnection,
        control: ControlChannel,
        hello: Hello,
    ) -> None:
        self.box_id = box_id
        self.connection = connection
        """Used by the SSH relay, which opens its own channels."""
        self.hello = hello
        self._control = control

    @property
    def closed(self) -> bool:
        """Whether the tunnel is down."""
        return self.connection.is_closed()

    async def suspend_soon(self) -> Presence:
        """Announce a freeze to the agent, which then closes its end of the tunnel.

        Returns what keeps the box awake, from the agent's answer. Has no timeout. Raises
        Unavailable, or ProtocolError for a malformed answer.
        """
        return checked_presence(await self._control.request(protocol.SUSPEND_SOON))

    async def start(
        self,
        command: str | None,
        *,
        env: Mapping[str, str] | None = None,
        terminal: Terminal | None = None,
    ) -> Exec:
        """Start a command with the login shell (None: the shell itself). Raises Unavailable."""
        try:
            return await self._session(env, command=command, terminal=terminal)
        except FAULTS as error:
            raise _unavailable(error) from None

    async def start_handover(self, *, env: Mapping[str, str]) -> Exec:
        """Start the handover program, which becomes a command that it receives sealed.

        `env` is the environment of the session; see `boxd.boxes.commands.handover`. Raises
        Unavailable, for example if the agent does not support handovers.
        """
        return await self.open_subsystem(
            protocol.HANDOVER_SUBSYSTEM, env=env, lacks="cannot receive a token in secret"
        )

    async def open_subsystem(
        self, name: str, *, lacks: str, env: Mapping[str, str] | None = None
    ) -> Exec:
        """Open a channel with a subsystem of the agent.

        Raises Unavailable. If the agent is too old for the subsystem, the text says so; `lacks` is
        what the box then cannot do.
        """
        try:
            return await self._session(env, subsystem=name)
        except asyncssh.ChannelOpenError as error:
            if error.code != OPEN_REQUEST_SESSION_FAILED or self.closed:
                raise _unavailable(error) from None
            raise Unavailable(
                f"this box was created by an earlier version of the service and {lacks}; use a new"
                " box, or remove and recreate this one"
            ) from None
        except FAULTS as error:
            raise _unavailable(error) from None

    async def _session(
        self,
        env: Mapping[str, str] | None,
        *,
        command: str | None = None,
        subsystem: str | None = None,
        terminal: Terminal | None = None,
    ) -> Exec:
        """Open a session with the given request. Raises FAULTS and Unavailable."""
        variables: dict[str | bytes, str | bytes] = {}
        variables.update(env or {})
        async with asyncio.timeout(OPEN_S):
            opening = self.connection.create_session(
                Exec,
                command=command,
                subsystem=subsystem,
                env=variables,
                encoding=None,
                window=TERMINAL_WINDOW if terminal else WINDOW,
                max_pktsize=TERMINAL_PACKET if terminal else PACKET,
                request_pty="force" if terminal else False,
                term_type=terminal.term if terminal else None,
                term_size=terminal.size if terminal else None,
            )
            _, session = await opened(opening, lambda pair: pair[0].abort())
        if not isinstance(session, Exec):
            raise Unavailable("the box's agent opened a channel of another type")
        return session

    async def dial(self, host: str, port: int) -> ByteStream:
        """Connect to a TCP target as seen from inside the box.

        Raises NothingListening or DialTimeout, which name the target, or Unavailable without a
        tunnel.
        """
        try:
            async with asyncio.timeout(OPEN_S):
                opening = self.connection.create_connection(
                    ChannelStream, host, port, encoding=None, window=WINDOW, max_pktsize=PACKET
                )
                _, session = await opened(opening, lambda pair: pair[0].abort())
        except asyncssh.ChannelOpenError as error:
            if self.closed:
                raise _unavailable(error) from None
            if error.reason.endswith(protocol.DIAL_TIMED_OUT):
                raise DialTimeout(error.reason) from None
            raise NothingListening(error.reason) from None
        except FAULTS as error:
            raise _unavailable(error) from None
        if not isinstance(session, ChannelStream):
            raise Unavailable("the box's agent opened a channel of another type")
        return session

    async def ask(self, kind: str, **fields: object) -> dict[str, Any]:
        """Send a request to the agent and return its unchecked result.

        Has no timeout. Raises Unavailable.
        """
        return await self._control.request(kind, **fields)

    async def offer(self, path: str, taken: Callable[[ByteReader, ByteWriter], Taken]) -> Offer:
        """Accept connections that the agent forwards under `path`; `taken` serves each of them.

        `taken` must not raise. Raises Unavailable.
        """
        try:
            async with asyncio.timeout(OPEN_S):
                opening = self.connection.start_unix_server(
                    lambda: taken, path, encoding=None, window=WINDOW, max_pktsize=PACKET
                )
                return await opened(opening, lambda late: late.close())
        except FAULTS as error:
            raise _unavailable(error) from None

    async def close(self) -> None:
        """Close the tunnel and all of its channels.

        The agent dials again unless its box is gone.
        """
        self.connection.abort()
        await self.connection.wait_closed()


class Exec(asyncssh.SSHClientSession[bytes]):
    """A running command. One task reads `output()`; any task may write, signal and end it.

    Callbacks of the connection fill `_chunks` and set `_news`; the reader takes chunks between its
    awaits.
    """

    def __init__(self) -> None:
        self._chan: asyncssh.SSHClientChannel[bytes] | None = None
        self._chunks: deque[tuple[Stream, bytes]] = deque()
        self._held = False
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._over = asyncio.Event()
        self._status: ExitStatus | None = None
        self._let_go = False

    @property
    def ended(self) -> bool:
        """Whether the exit status is known. Output may still be unread."""
        return self._status is not None

    @property
    def unread(self) -> bool:
        """Whether output waits here for its reader, or is being read: more may follow at once.

        If not, further output comes only from the box.
        """
        return self._held

    async def write(self, data: bytes) -> None:
        """Write to the command's input; wait while the box accepts no more.

        Does nothing if the command has ended: `wait` reports its end.
        """
        await self._writable.wait()
        if self._chan is not None and not self._chan.is_closing():
            self._chan.write(data)

    def write_eof(self) -> None:
        """Close the command's input."""
        if self._chan is not None:
            self._chan.write_eof()

    async def output(self) -> AsyncGenerator[tuple[Stream, bytes], None]:
        """Yield the command's output, in order within each stream, until its end.

        The method pauses the box's side while a packet waits here or is being read, so at most one
        window arrives meanwhile.
        """
        while True:
            while self._chunks:
                piece = self._chunks.popleft()
                try:
                    yield piece
                finally:
                    self._go_on()
            self._go_on()
            if self._over.is_set():
                return
            self._news.clear()
            await self._news.wait()

    def _go_on(self) -> None:
        """Resume the box's side, because the reader has consumed all chunks or stopped reading."""
        if self._held and not self._chunks and self._chan is not None:
            self._held = False
            self._chan.resume_reading()

    async def wait(self) -> ExitStatus:
        """Return how the command ended. Raises Unavailable if the tunnel went down before.

        Call it after reading `output()`, or at the same time: unread output delays the end.
        """
        await self._over.wait()
        if self._status is None:
            raise Unavailable("the connection to the box was lost before the command ended")
        return self._status

    def send_signal(self, name: str) -> None:
        """Send a signal (name without SIG) to the command's foreground group.

        Also works after `write_eof`, when asyncssh already calls the channel closing.
        """
        if self._chan is not None:
            with contextlib.suppress(OSError):
                self._chan.send_signal(name)

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of the terminal."""
        if self._chan is not None:
            with contextlib.suppress(OSError):
                self._chan.change_terminal_size(columns, rows)

    async def end(self) -> None:
        """Close the channel, and wait until the agent has closed it too.

        Raises TimeoutError if it does not; `output` and `wait` end in any case.
        """
        self.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._over.wait()
        finally:
            self._set_over()

    def close(self) -> None:
        """Close the channel; the agent ends the command's process group (HUP, TERM, KILL).

        If the command had not ended before, `wait` then reports the signal HUP.
        """
        if self._chan is not None:
            self._let_go = True
            if self._status is None:
                self._status = ExitStatus(None, "HUP")
            self._chan.abort()

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """Store the channel and set its write buffer."""
        self._chan = chan
        chan.set_write_buffer_limits(high=WRITE_BUFFER)

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Queue output for the reader, and pause the box's side."""
        self._chunks.append(("stderr" if datatype else "stdout", data))
        if not self._held and self._chan is not None:
            self._held = True
            self._chan.pause_reading()
        self._news.set()

    def eof_received(self) -> bool:
        """Keep the channel open for input after the end of output."""
        return True

    def pause_writing(self) -> None:
        """Block `write`."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Unblock `write`."""
        self._writable.set()

    def exit_status_received(self, status: int) -> None:
        """Store the exit status."""
        self._status = ExitStatus(status, None)

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        """Store the signal (name without SIG) that ended the command."""
        self._status = ExitStatus(None, signal)

    def connection_lost(self, exc: Exception | None) -> None:
        """End `output` and `wait`; the exit status is unknown if output may be missing."""
        # Output that asyncssh still held is lost with the tunnel. If the status has arrived
        # already, keeping it would report partial output as complete.
        if exc is not None or not (self._let_go or self._closed_by_agent()):
            self._status = None
        self._set_over()

    def _set_over(self) -> None:
        self._chan = None
        self._writable.set()
        self._over.set()
        self._news.set()

    def _closed_by_agent(self) -> bool:
        """Return whether the agent has closed the channel, which it does after all output."""
        return self._chan is not None and self._chan._recv_state == "closed"


def _unavailable(error: Exception) -> Unavailable:
    reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
    return Unavailable(f"the box cannot be reached at the moment: {reason}")
