"""Protocol adapter only. `ssh -L`, `-W` and `-D`: one connection, dialled from inside the box.

Each forwarded connection is one task that holds the box attached; bytes go from callback to
callback. The reason with which the box refuses reaches the client, and the SSH connection stays.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypeAlias

import asyncssh
from asyncssh.constants import OPEN_CONNECT_FAILED

from boxd.errors import BoxdError
from boxd.model.progress import SILENT
from boxd.names.words import escaped
from boxd.ssh.connection.session import guarded
from boxd.tunnel.channel import FAULTS
from boxd.tunnel.opening import opened

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from boxd.boxes.lifecycle.holds import Attachment
    from boxd.model.progress import Progress
    from boxd.tasks import BackgroundTasks

    Channel = asyncssh.SSHTCPChannel[bytes] | asyncssh.SSHUNIXChannel[bytes]

FLUSH_S = 30.0
"""How long bytes of a client that has gone may take to reach their target."""
WINDOW = 512 * 1024
PACKET = 128 * 1024

_log = logging.getLogger(__name__)

Attach: TypeAlias = "Callable[[str, Progress], AbstractAsyncContextManager[Attachment]]"
"""Attaches to the box: (why, where reports go)."""
Dial: TypeAlias = "Callable[[asyncssh.SSHClientConnection, End], Awaitable[object]]"
"""Opens the box's end of a forwarding: (connection of the tunnel, session of that end)."""


class End(asyncssh.SSHTCPSession[bytes], asyncssh.SSHUNIXSession[bytes]):
    """One end of a forwarded connection; what it reads its peer writes.

    It does not read before its peer is open, so nothing is held here.
    """

    def __init__(self, peer: End | None = None) -> None:
        self.chan: Channel | None = None
        self.peer = peer
        self.input_ended = False
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if peer is not None:
            peer.peer = self

    @guarded(None)
    def connection_made(self, chan: Channel) -> None:
        """Open: from now on the peer may read."""
        self.chan = chan

    @guarded(None)
    def session_started(self) -> None:
        """The first end waits for the second; the second lets the first go on."""
        peer, chan = self.peer, self.chan
        if chan is None:
            return
        if peer is None or peer.chan is None:
            chan.pause_reading()
            return
        peer.read_on()
        if peer.input_ended:
            chan.write_eof()
        if peer.closed.done():
            chan.close()
        self._close_when_over()

    @guarded(None)
    def data_received(self, data: bytes, datatype: int | None) -> None:
        """To the other end."""
        out = self._out()
        if out is not None and not out.is_closing():
            out.write(data)

    @guarded(False)
    def eof_received(self) -> bool:
        """The other end may still send. When both have ended, both close after what was read."""
        self.input_ended = True
        out = self._out()
        if out is not None:
            out.write_eof()
        self._close_when_over()
        return True

    @guarded(None)
    def pause_writing(self) -> None:
        """This end does not take more: the other one stops reading."""
        out = self._out()
        if out is not None:
            out.pause_reading()

    @guarded(None)
    def resume_writing(self) -> None:
        """This end takes more."""
        if self.peer is not None:
            self.peer.read_on()

    def read_on(self) -> None:
        """Reads again. Asyncssh fails when a closed channel is to be read on."""
        if self.chan is not None and not self.closed.done():
            self.chan.resume_reading()

    @guarded(None)
    def connection_lost(self, exc: Exception | None) -> None:
        """Closed: the other end is closed too, after what was read has been sent."""
        if not self.closed.done():
            self.closed.set_result(None)
        out = self._out()
        if out is not None:
            out.close()

    def abort(self) -> None:
        """Ends this end at once."""
        if self.chan is not None:
            self.chan.abort()

    def _close_when_over(self) -> None:
        """OpenSSH waits for the close of a channel that has ended both ways."""
        peer = self.peer
        if peer is None or peer.chan is None or self.chan is None:
            return
        if self.input_ended and peer.input_ended:
            peer.chan.close()
            self.chan.close()

    def _out(self) -> Channel | None:
        return None if self.peer is None else self.peer.chan


class Forwarder:
    """Opens forwarded connections to one box."""

    def __init__(self, tasks: BackgroundTasks, attach: Attach, why: str) -> None:
        """`why` is what holds the box awake, as its owner is told."""
        self._tasks = tasks
        self._attach = attach
        self._why = why

    async def open(self, dial: Dial, released: Callable[[], None]) -> End:
        """The client's end of a new forwarded connection; `released` is called at its end.

        Raises asyncssh.ChannelOpenError with the reason.
        """
        opened: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        task = self._tasks.start(self._hold(dial, opened), name="ssh forward")

        def ended(_task: asyncio.Task[None]) -> None:
            # Here and not in the task: one that is cancelled before it begins runs no line of it.
            _refuse(opened, OPEN_CONNECT_FAILED, "the front door is closing")
            released()

        task.add_done_callback(ended)
        try:
            return await opened
        except asyncio.CancelledError:
            task.cancel()
            raise

    async def _hold(self, dial: Dial, opened: asyncio.Future[End]) -> None:
        """Keeps the box attached until both ends are closed."""
        try:
            async with self._attach(self._why, SILENT) as attachment:
                box_end = End()
                await dial(attachment.tunnel.connection, box_end)
                client_end = End(box_end)
                if opened.cancelled():
                    box_end.abort()
                    return
                opened.set_result(client_end)
                try:
                    await client_end.closed
                    await asyncio.wait([box_end.closed], timeout=FLUSH_S)
                finally:
                    box_end.abort()
        except asyncssh.ChannelOpenError as error:
            _refuse(opened, error.code, error.reason)
        except (BoxdError, *FAULTS) as error:
            _refuse(opened, OPEN_CONNECT_FAILED, str(error))
        except Exception:
            _log.exception("a forwarded connection failed")
            _refuse(opened, OPEN_CONNECT_FAILED, "internal error")


def to_port(host: str, port: int) -> Dial:
    """Dials a TCP port from inside the box."""

    async def dial(connection: asyncssh.SSHClientConnection, end: End) -> object:
        opening = connection.create_connection(
            lambda: end, host, port, encoding=None, window=WINDOW, max_pktsize=PACKET
        )
        return await opened(opening, lambda pair: pair[0].abort())

    return dial


def to_socket(path: str) -> Dial:
    """Dials a Unix socket in the box."""

    async def dial(connection: asyncssh.SSHClientConnection, end: End) -> object:
        opening = connection.create_unix_connection(
            lambda: end, path, encoding=None, window=WINDOW, max_pktsize=PACKET
        )
        return await opened(opening, lambda pair: pair[0].abort())

    return dial


def _refuse(opened: asyncio.Future[End], code: int, reason: str) -> None:
    if not opened.done():
        opened.set_exception(asyncssh.ChannelOpenError(code, escaped(reason)))
