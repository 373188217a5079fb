"""A connection whose other side does not read holds back what its channels bring.

A channel's window bounds what its peer has not taken, and the peer chooses it: 2 GiB if it likes.
asyncssh writes as much as windows allow, whether the socket takes it or not, and during a
re-exchange of keys it keeps everything. Here every channel of a connection gets a second reason to
pause beside its window: that the connection waits, for its socket or for keys. Sessions see one
`pause_writing` and one `resume_writing`, as ever.

The window that is given to the peer counts what waits here for a session that has paused. asyncssh
gives all of it back with the first piece that is taken after half of it was used: of a session that
takes piece by piece, slowly, it would keep ever more.

It stands between asyncssh's own parts, by attributes of these very objects, because asyncssh has no
place for it. Nothing here awaits, so each method is atomic on the event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncssh

from box_guest.packed import Packed

if TYPE_CHECKING:
    from asyncssh.channel import SSHChannel
    from asyncssh.connection import SSHConnection
    from asyncssh.packet import SSHPacketLogger

HIGH = 256 * 1024
"""Bytes that may wait for the socket before the channels are held. *Measured*: 64 KiB and 1 MiB are
neither faster nor slower."""
UNREAD_MAX = 4 << 20
"""Bytes that may wait for the socket at all. Channels are held long before: these are answers to
one that goes on asking and does not read."""
DEFERRED_MAX = 16_384
"""Messages that may wait for new keys, as above."""
PIECES_MAX = 256
"""Pieces of a channel that may wait for its window, however small: each is an object."""
KEYS_S = 30.0
"""A re-exchange of keys that does not end in this time ends the connection, unless the socket still
takes what was written before it."""

_SOCKET, _KEYS = "socket", "keys"


class Backpressure:
    """Watches over what one connection writes, from its making on."""

    def __init__(self, connection: SSHConnection) -> None:
        """To be called when the connection is made, before it has channels."""
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
        """Whether channels are held."""
        return bool(self._reasons)

    # --- the connection ------------------------------------------------------------------

    def _socket_is_full(self) -> None:
        self._hold(_SOCKET)

    def _socket_takes_more(self) -> None:
        self._let_go(_SOCKET)

    def _keys_wanted(self) -> None:
        """Either side began an exchange: what is no part of it is kept until its end."""
        self._begin()
        if self._connection._session_id:  # the first one is bounded by the time for logging in
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
                self._cut(f"a re-exchange of keys did not end in {KEYS_S:g} s")

        self._watch = asyncio.get_running_loop().call_later(KEYS_S, look)

    def _sent(self, pkttype: int, *args: bytes, handler: SSHPacketLogger | None = None) -> None:
        self._send(pkttype, *args, handler=handler)
        if self._reasons and (
            self._unsent() > UNREAD_MAX or len(self._connection._deferred_packets) > DEFERRED_MAX
        ):
            self._cut("answers are not read")

    def _unsent(self) -> int:
        transport = self._connection._transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def _cut(self, reason: str) -> None:
        """Ends the connection as for any other breach of the protocol."""
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
            # asyncssh fills the window up to this, when it is less than half of it.
            held = channel._recv_window + waiting.size
            channel._init_recv_window = window - waiting.size if 2 * held < window else 0
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
        """Channels go on, another one first each time: one alone may fill the socket again."""
        self._reasons.discard(reason)
        channels = list(self._connection._channels.values())
        first = self._turn % len(channels) if channels else 0
        for channel in channels[first:] + channels[:first]:
            if self._reasons:
                return
            self._turn += 1
            channel._flush_send_buf()


def _pause(channel: SSHChannel[bytes]) -> None:
    """What asyncssh does when a channel's own buffer is full, but with each write: a session that
    is just being opened may have had nobody to stop yet."""
    if channel._session is not None:
        channel._send_paused = True
        channel._session.pause_writing()
