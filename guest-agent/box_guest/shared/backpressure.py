"""Back-pressure for an SSH connection: a peer that does not read pauses the connection's channels.

A channel's window bounds the bytes that its peer has not read, but the peer chooses the window: up
to 2 GiB. asyncssh writes as much as the windows allow, whether the socket accepts it or not, and
during a key re-exchange it buffers everything. Here every channel of a connection has a second
reason to pause besides its window: the connection waits, for its socket or for keys. Sessions still
see one `pause_writing` and one `resume_writing`.

Data that waits here for a paused session counts against the window granted to the peer. asyncssh
would grant the whole window again as soon as the session takes the first piece after half of the
window was used. For a session that takes pieces slowly, the buffer would grow without bound.

This module replaces attributes of asyncssh's own objects, because asyncssh has no hook for it.
Nothing here awaits, so each method is atomic on the event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncssh

from box_guest.shared.packed import Packed

if TYPE_CHECKING:
    from asyncssh.channel import SSHChannel
    from asyncssh.connection import SSHConnection
    from asyncssh.packet import SSHPacketLogger

HIGH = 256 * 1024
"""Bytes that may wait for the socket before the channels are paused. *Measured*: 64 KiB and 1 MiB
are neither faster nor slower."""
UNREAD_MAX = 4 << 20
"""Maximum number of bytes that may wait for the socket; more end the connection. Channels pause
long before, so these are answers to a peer that keeps sending requests and does not read."""
DEFERRED_MAX = 16_384
"""Maximum number of messages that may wait for new keys; more end the connection."""
PIECES_MAX = 256
"""Maximum number of pieces of a channel that may wait for its window, however small: each is an
object."""
KEYS_S = 30.0
"""Seconds after which an unfinished key re-exchange ends the connection, unless the socket still
accepts earlier data."""

_SOCKET, _KEYS = "socket", "keys"


class Backpressure:
    """Controls what one connection writes, from the start of the connection."""

    def __init__(self, connection: SSHConnection) -> None:
        """Must be created with the connection, before it has channels."""
        self._connection = connection
        self._reasons: set[str] = set()
        self._turn = 0
        self._watch: asyncio.TimerHandle | None = None
        self._send, self._add = connection.send_packet, connection.add_channel
        self._begin, self._finish = connection._send_kexinit, connection.send_newkeys
        vars(connection).update(
            pause_writing=self._socket_is_full,
            resume_writing=self._socket_takes_more,
            send_packet=self._sent,
            add_channel=self._added,
            _send_kexinit=self._keys_wanted,
            send_newkeys=self._keys_made,
        )
        if connection._transport is not None:
            connection._transport.set_write_buffer_limits(high=HIGH)

    @property
    def waiting(self) -> bool:
        """Whether the channels are paused."""
        return bool(self._reasons)

    # --- the connection ------------------------------------------------------------------

    def _socket_is_full(self) -> None:
        self._hold(_SOCKET)

    def _socket_takes_more(self) -> None:
        self._let_go(_SOCKET)

    def _keys_wanted(self) -> None:
        """Start a key exchange, requested by either side, and pause the channels until it ends."""
        self._begin()
        if self._connection._session_id:  # the login timeout bounds the first exchange
            self._hold(_KEYS)
            self._watch_keys()

    def _keys_made(self, k: bytes, h: bytes) -> None:
        self._finish(k, h)
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._let_go(_KEYS)

    def _watch_keys(self) -> None:
        unsent = self._unsent()

        def look() -> None:
            if self._unsent() < unsent:
                self._watch_keys()
            else:
                self._cut(f"a key re-exchange did not end within {KEYS_S:g} s")

        self._watch = asyncio.get_running_loop().call_later(KEYS_S, look)

    def _sent(self, pkttype: int, *args: bytes, handler: SSHPacketLogger | None = None) -> None:
        self._send(pkttype, *args, handler=handler)
        if self._reasons and (
            self._unsent() > UNREAD_MAX or len(self._connection._deferred_packets) > DEFERRED_MAX
        ):
            self._cut("the peer does not read its answers")

    def _unsent(self) -> int:
        transport = self._connection._transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def _cut(self, reason: str) -> None:
        """End the connection as for any other violation of the protocol."""
        self._connection._force_close(asyncssh.ProtocolError(reason))

    # --- its channels --------------------------------------------------------------------

    def _added(self, channel: SSHChannel[bytes]) -> int:
        flush, follow = channel._flush_send_buf, channel._pause_resume_writing
        deliver, window, waiting = channel._deliver_data, channel._init_recv_window, Packed()

        def flushed() -> None:
            if self._reasons:
                _pause(channel)
            else:
                flush()

        def followed() -> None:
            if self._reasons or len(channel._send_buf) > PIECES_MAX:
                _pause(channel)
            else:
                follow()

        def delivered(data: bytes, datatype: int | None) -> None:
            # asyncssh refills the window up to this value if less than half of the value is left.
            open_window = channel._recv_window + waiting.size
            channel._init_recv_window = window - waiting.size if 2 * open_window < window else 0
            try:
                deliver(data, datatype)
            finally:
                channel._init_recv_window = window

        vars(channel).update(
            _flush_send_buf=flushed,
            _pause_resume_writing=followed,
            _deliver_data=delivered,
            _recv_buf=waiting,
        )
        return self._add(channel)

    def _hold(self, reason: str) -> None:
        if not self._reasons:
            for channel in self._connection._channels.values():
                _pause(channel)
        self._reasons.add(reason)

    def _let_go(self, reason: str) -> None:
        """Resume the channels, starting with another one each time: one may refill the socket."""
        self._reasons.discard(reason)
        channels = list(self._connection._channels.values())
        first = self._turn % len(channels) if channels else 0
        for channel in channels[first:] + channels[:first]:
            if self._reasons:
                return
            self._turn += 1
            channel._flush_send_buf()


def _pause(channel: SSHChannel[bytes]) -> None:
    """Pause a channel as asyncssh does when the channel's own buffer is full.

    Called with each write, because a session that is still being opened may not have had a pump to
    stop.
    """
    if channel._session is not None:
        channel._send_paused = True
        channel._session.pause_writing()
