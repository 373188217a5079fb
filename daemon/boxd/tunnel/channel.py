"""One live tunnel and what runs in it: commands, dialled connections."""

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
from boxd.tunnel.control import checked_shells
from boxd.tunnel.opening import opened
from boxd.tunnel.stream import ChannelStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
    from typing import Any

    from boxd.tunnel.control import ControlChannel, Hello
    from boxd.tunnel.stream import ByteStream

WINDOW = 512 * 1024
PACKET = 128 * 1024
TERMINAL_WINDOW = 128 * 1024
TERMINAL_PACKET = 32 * 1024
"""A terminal has input that waits, too, and all of it is to be within a MiB. Its output comes as
fast with them (*measured*)."""
OPEN_S = 30.0
"""An agent that does not answer the opening of a channel in this time is not there."""
WRITE_BUFFER = 64 * 1024
"""Input of a command that may wait here for the box."""
CLOSE_S = 10.0
"""Longer than an agent takes to end a stubborn process group."""
FAULTS = (asyncssh.Error, PacketDecodeError, OSError, TimeoutError)
"""How the opening of a channel fails. An agent may say yes in a way that cannot be read."""

Stream = Literal["stdout", "stderr"]
Taken: TypeAlias = "Coroutine[Any, Any, None]"


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a command ended: `code`, or the name of the `signal` (without SIG) that ended it."""

    code: int | None
    signal: str | None


@dataclass(frozen=True, slots=True)
class Terminal:
    """A terminal for a command: type and (columns, rows)."""

    term: str
    size: tuple[int, int]


class ByteReader(Protocol):
    """The reading half of a dialled connection."""

    async def read(self, n: int = -1) -> bytes:
        """Up to `n` bytes; empty at the end."""


class ByteWriter(Protocol):
    """The writing half of a dialled connection."""

    def write(self, data: bytes) -> None:
        """Queues bytes."""

    def write_eof(self) -> None:
        """Nothing more follows."""

    async def drain(self) -> None:
        """Waits until the queue is short again."""

    def close(self) -> None:
        """Ends the connection."""

    async def wait_closed(self) -> None:
        """Waits until both sides have ended it."""


class Offer(Protocol):
    """Connections of a box are taken, until it is closed or the tunnel goes down."""

    def close(self) -> None:
        """Takes no more."""


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
        """For the front door's relay, which opens its own channels."""
        self.hello = hello
        self._control = control

    @property
    def closed(self) -> bool:
        """Whether it went down."""
        return self.connection.is_closed()

    async def suspend_soon(self) -> int:
        """Tells the agent that its box is about to be frozen; it will close its end of the tunnel.

        Returns the number of detached shells that it answers with. Not bounded in time. Raises
        Unavailable, or ProtocolError for an answer that is none.
        """
        return checked_shells(await self._control.request(protocol.SUSPEND_SOON))

    async def start(
        self,
        command: str | None,
        *,
        env: Mapping[str, str] | None = None,
        terminal: Terminal | None = None,
    ) -> Exec:
        """Starts a command by the login shell (None: the shell itself). Raises Unavailable."""
        try:
            return await self._session(env, command=command, terminal=terminal)
        except FAULTS as error:
            raise _unavailable(error) from None

    async def start_handover(self, *, env: Mapping[str, str]) -> Exec:
        """Starts what becomes a command that it is sent sealed, with `env` as its session's; see
        `boxd.boxes.handover`. Raises Unavailable, also when the agent does not know of it."""
        try:
            return await self._session(env, subsystem=protocol.HANDOVER_SUBSYSTEM)
        except asyncssh.ChannelOpenError as error:
            if error.code != OPEN_REQUEST_SESSION_FAILED or self.closed:
                raise _unavailable(error) from None
            raise Unavailable(
                "this box is of an earlier version of the service, and cannot be handed a token in "
                "secret; do it in a new box, or remove this one and make it anew"
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
        """A session, and what is requested of it. Raises FAULTS and Unavailable."""
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
            raise Unavailable("the box's agent opened something else")
        return session

    async def dial(self, host: str, port: int) -> ByteStream:
        """Connects to a TCP target as seen from inside the box.

        Raises NothingListening or DialTimeout naming the target, Unavailable without a tunnel.
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
            raise Unavailable("the box's agent opened something else")
        return session

    async def ask(self, kind: str, **fields: object) -> dict[str, Any]:
        """One request of the daemon to the agent; what it says is for the caller to check. Not
        bounded in time. Raises Unavailable."""
        return await self._control.request(kind, **fields)

    async def offer(self, path: str, taken: Callable[[ByteReader, ByteWriter], Taken]) -> Offer:
        """Takes the connections that the agent passes on under a path; `taken` serves each, and
        must not raise. Raises Unavailable."""
        try:
            async with asyncio.timeout(OPEN_S):
                opening = self.connection.start_unix_server(
                    lambda: taken, path, encoding=None, window=WINDOW, max_pktsize=PACKET
                )
                return await opened(opening, lambda late: late.close())
        except FAULTS as error:
            raise _unavailable(error) from None

    async def close(self) -> None:
        """Ends it; every channel ends too. The agent will dial again unless its box is gone."""
        self.connection.abort()
        await self.connection.wait_closed()


class Exec(asyncssh.SSHClientSession[bytes]):
    """A running command. One task reads `output()`; any task may write, signal and end.

    Callbacks of the connection fill `_chunks` and set `_news`; the readers take from it between
    their awaits.
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
        """Whether it is known how the command ended. There may be output that nobody has read."""
        return self._status is not None

    @property
    def unread(self) -> bool:
        """Whether output waits here for its reader, or is with the reader: more may follow at
        once. Without any, more comes only from the box."""
        return self._held

    async def write(self, data: bytes) -> None:
        """Bytes for the command's input; waits while the box takes no more.

        Nothing happens when the command is over: its end is told by `wait`.
        """
        await self._writable.wait()
        if self._chan is not None and not self._chan.is_closing():
            self._chan.write(data)

    def write_eof(self) -> None:
        """End of the command's input."""
        if self._chan is not None:
            self._chan.write_eof()

    async def output(self) -> AsyncGenerator[tuple[Stream, bytes], None]:
        """What the command writes, in order within each stream, until its end.

        The box's side is held while a packet waits here, or is with the reader: what comes
        meanwhile is at most the window.
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
        """The reader is done with what came, also one who reads no more of it."""
        if self._held and not self._chunks and self._chan is not None:
            self._held = False
            self._chan.resume_reading()

    async def wait(self) -> ExitStatus:
        """How the command ended. Raises Unavailable when the tunnel went down before.

        To be called after (or beside) reading `output()`: unread output holds the end back.
        """
        await self._over.wait()
        if self._status is None:
            raise Unavailable("the connection to the box was lost before the command ended")
        return self._status

    def send_signal(self, name: str) -> None:
        """Sends a signal (name without SIG) to the command's foreground group.

        Also after `write_eof`, which a channel already calls closing.
        """
        if self._chan is not None:
            with contextlib.suppress(OSError):
                self._chan.send_signal(name)

    def resize(self, columns: int, rows: int) -> None:
        """New size of the terminal."""
        if self._chan is not None:
            with contextlib.suppress(OSError):
                self._chan.change_terminal_size(columns, rows)

    async def end(self) -> None:
        """As `close`, and waits until the agent has let go of the channel.

        TimeoutError when it does not: then it is over for `output` and `wait` all the same.
        """
        self.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._over.wait()
        finally:
            self._set_over()

    def close(self) -> None:
        """Closes the channel; the agent ends the command's whole group (HUP, TERM, KILL).

        `wait` then tells a command that had not ended before as hung up.
        """
        if self._chan is not None:
            self._let_go = True
            if self._status is None:
                self._status = ExitStatus(None, "HUP")
            self._chan.abort()

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._chan = chan
        chan.set_write_buffer_limits(high=WRITE_BUFFER)

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self._chunks.append(("stderr" if datatype else "stdout", data))
        if not self._held and self._chan is not None:
            self._held = True
            self._chan.pause_reading()
        self._news.set()

    def eof_received(self) -> bool:
        return True

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def exit_status_received(self, status: int) -> None:
        self._status = ExitStatus(status, None)

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        self._status = ExitStatus(None, signal)

    def connection_lost(self, exc: Exception | None) -> None:
        # With the tunnel goes what asyncssh still held of the output, however it ended. Then a
        # status that has come already would call half of the output all of it.
        if exc is not None or not (self._let_go or self._closed_by_agent()):
            self._status = None
        self._set_over()

    def _set_over(self) -> None:
        self._chan = None
        self._writable.set()
        self._over.set()
        self._news.set()

    def _closed_by_agent(self) -> bool:
        """Whether the channel has come to its own end, which comes behind all output."""
        return self._chan is not None and self._chan._recv_state == "closed"


def _unavailable(error: Exception) -> Unavailable:
    reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
    return Unavailable(f"the box cannot be reached at the moment: {reason}")
