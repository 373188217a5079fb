"""Protocol adapter only. `ssh -L`, `-W` and `-D`: connections that are dialled inside the box.

One task for each forwarded connection keeps the box attached; bytes pass from callback to callback.
If the box rejects the connection, the client gets the reason, and its SSH connection stays open.
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
"""Seconds to deliver the last bytes of a client that has closed its end."""
WINDOW = 512 * 1024
PACKET = 128 * 1024

_log = logging.getLogger(__name__)

Attach: TypeAlias = "Callable[[str, Progress], AbstractAsyncContextManager[Attachment]]"
"""Attaches to the box: (reason, where reports go)."""
Dial: TypeAlias = "Callable[[asyncssh.SSHClientConnection, ForwardEnd], Awaitable[object]]"
"""Opens the box's end of a forwarded connection: (tunnel connection, session of that end)."""


class ForwardEnd(asyncssh.SSHTCPSession[bytes], asyncssh.SSHUNIXSession[bytes]):
    """One end of a forwarded connection. It writes all data that it reads to its peer.

    It starts to read when its peer is open, so it buffers nothing.
    """

    def __init__(self, peer: ForwardEnd | None = None) -> None:
        self.chan: Channel | None = None
        self.peer = peer
        self.input_ended = False
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if peer is not None:
            peer.peer = self

    @guarded(None)
    def connection_made(self, chan: Channel) -> None:
        """Store the open channel."""
        self.chan = chan

    @guarded(None)
    def session_started(self) -> None:
        """Pause the first end until the second one opens; then let the first one read."""
        peer, chan = self.peer, self.chan
        if chan is None:
            return
        if peer is None or peer.chan is None:
            chan.pause_reading()
            return
        peer.resume_reading()
        if peer.input_ended:
            chan.write_eof()
        if peer.closed.done():
            chan.close()
        self._close_when_both_ended()

    @guarded(None)
    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Write the data to the peer."""
        out = self._peer_channel()
        if out is not None and not out.is_closing():
            out.write(data)

    @guarded(False)
    def eof_received(self) -> bool:
        """Pass on the end of input. The peer may still send until it has ended, too."""
        self.input_ended = True
        out = self._peer_channel()
        if out is not None:
            out.write_eof()
        self._close_when_both_ended()
        return True

    @guarded(None)
    def pause_writing(self) -> None:
        """Stop reading from the peer, because this end accepts no more data."""
        out = self._peer_channel()
        if out is not None:
            out.pause_reading()

    @guarded(None)
    def resume_writing(self) -> None:
        """Read from the peer again, because this end accepts more data."""
        if self.peer is not None:
            self.peer.resume_reading()

    def resume_reading(self) -> None:
        """Read again. asyncssh fails if a closed channel resumes reading."""
        if self.chan is not None and not self.closed.done():
            self.chan.resume_reading()

    @guarded(None)
    def connection_lost(self, exc: Exception | None) -> None:
        """Close the peer, too, after it has sent all data."""
        if not self.closed.done():
            self.closed.set_result(None)
        out = self._peer_channel()
        if out is not None:
            out.close()

    def abort(self) -> None:
        """Close this end at once."""
        if self.chan is not None:
            self.chan.abort()

    def _close_when_both_ended(self) -> None:
        """Close both channels after both inputs have ended; OpenSSH waits for this close."""
        peer = self.peer
        if peer is None or peer.chan is None or self.chan is None:
            return
        if self.input_ended and peer.input_ended:
            peer.chan.close()
            self.chan.close()

    def _peer_channel(self) -> Channel | None:
        return None if self.peer is None else self.peer.chan


class Forwarder:
    """Opens forwarded connections to one box."""

    def __init__(self, tasks: BackgroundTasks, attach: Attach, why: str) -> None:
        """`why` is the reason of the attachment, which the owner sees."""
        self._tasks = tasks
        self._attach = attach
        self._why = why

    async def open(self, dial: Dial, on_closed: Callable[[], None]) -> ForwardEnd:
        """Return the client's end of a new forwarded connection.

        `on_closed` is called when the connection ends or fails to open. Raises
        asyncssh.ChannelOpenError with the reason.
        """
        opening: asyncio.Future[ForwardEnd] = asyncio.get_running_loop().create_future()
        task = self._tasks.start(self._run(dial, opening), name="ssh forward")

        def ended(_task: asyncio.Task[None]) -> None:
            # Not in the task: a task that is cancelled before its first step runs no code.
            _refuse(opening, OPEN_CONNECT_FAILED, "the connection is closing")
            on_closed()

        task.add_done_callback(ended)
        try:
            return await opening
        except asyncio.CancelledError:
            task.cancel()
            raise

    async def _run(self, dial: Dial, opening: asyncio.Future[ForwardEnd]) -> None:
        """Keep the box attached until both ends are closed."""
        try:
            async with self._attach(self._why, SILENT) as attachment:
                box_end = ForwardEnd()
                await dial(attachment.tunnel.connection, box_end)
                client_end = ForwardEnd(box_end)
                if opening.cancelled():
                    box_end.abort()
                    return
                opening.set_result(client_end)
                try:
                    await client_end.closed
                    await asyncio.wait([box_end.closed], timeout=FLUSH_S)
                finally:
                    box_end.abort()
        except asyncssh.ChannelOpenError as error:
            _refuse(opening, error.code, error.reason)
        except (BoxdError, *FAULTS) as error:
            _refuse(opening, OPEN_CONNECT_FAILED, str(error))
        except Exception:
            _log.exception("a forwarded connection failed")
            _refuse(opening, OPEN_CONNECT_FAILED, "internal error")


def port_dialer(host: str, port: int) -> Dial:
    """Return a Dial that opens a TCP connection from inside the box."""

    async def dial(connection: asyncssh.SSHClientConnection, end: ForwardEnd) -> object:
        opening = connection.create_connection(
            lambda: end, host, port, encoding=None, window=WINDOW, max_pktsize=PACKET
        )
        return await opened(opening, lambda pair: pair[0].abort())

    return dial


def socket_dialer(path: str) -> Dial:
    """Return a Dial that connects to a Unix socket in the box."""

    async def dial(connection: asyncssh.SSHClientConnection, end: ForwardEnd) -> object:
        opening = connection.create_unix_connection(
            lambda: end, path, encoding=None, window=WINDOW, max_pktsize=PACKET
        )
        return await opened(opening, lambda pair: pair[0].abort())

    return dial


def _refuse(opening: asyncio.Future[ForwardEnd], code: int, reason: str) -> None:
    if not opening.done():
        opening.set_exception(asyncssh.ChannelOpenError(code, escaped(reason)))
