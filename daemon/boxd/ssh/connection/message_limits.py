"""Protocol adapter only. Limits on messages that cost the daemon time and carry no data.

asyncssh answers every message, before and after authentication. Bytes need no limit here: a
channel's window stops a sender that is faster than the reader.

The limits apply to the messages of one connection. Exceeding one raises asyncssh.ProtocolError,
which ends the connection and sends the reason to the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncssh
from asyncssh.constants import (
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EXTENDED_DATA,
    MSG_CHANNEL_OPEN,
    MSG_GLOBAL_REQUEST,
    MSG_IGNORE,
    MSG_KEX_FIRST,
    MSG_KEX_LAST,
    MSG_KEXINIT,
    MSG_USERAUTH_FIRST,
    MSG_USERAUTH_LAST,
    MSG_USERAUTH_REQUEST,
)

from boxd.tunnel.limits import Bucket, Tap

if TYPE_CHECKING:
    import asyncio

AUTH_REQUESTS = 40
"""Authentication requests by all methods. A client may offer 32 keys (`auth.MAX_ATTEMPTS`)."""
PREAUTH_KEY_EXCHANGES = 1
"""Further key exchanges before authentication. No known client needs one."""
PREAUTH_MESSAGES = 100
"""Other messages before authentication. asyncssh's client sends one with each request."""

KEY_EXCHANGES = (1, 10)
"""Key exchanges before KEY_EXCHANGE_BYTES have been transferred: (per second, at once).

All pairs below have the same form.
"""
KEY_EXCHANGE_BYTES = 256 * 1024
"""Bytes in both directions after which a key exchange is free: it costs as much as these bytes."""
CHANNEL_OPENS = (200, 1000)
"""Channel opens. A client that runs commands in turn over one connection needs 150 per second."""
GLOBAL_REQUESTS = (64, 64)
"""Global requests. Clients send two at the start, and one per second as a keepalive."""
EMPTY_MESSAGES = (2000, 8000)
"""Messages without data. A command needs six."""
EMPTY_MESSAGE_BYTES = 4 * 1024
"""Bytes in both directions that pay for one more message without data.

Clients open windows in small steps.
"""

_DATA = {MSG_CHANNEL_DATA: 9, MSG_CHANNEL_EXTENDED_DATA: 13}
"""Messages with data, and their length without the data."""
_HANDLED_BY_OTHERS = {
    *range(MSG_KEX_FIRST, MSG_KEX_LAST + 1),
    *range(MSG_USERAUTH_FIRST, MSG_USERAUTH_LAST + 1),
}
"""Messages that belong to a key exchange or an authentication in progress."""


class MessageLimits(Tap):
    """Counts the messages of one client."""

    def __init__(self, connection: asyncssh.SSHServerConnection) -> None:
        super().__init__(connection)
        self.authenticated = False
        """The client has proved a key."""
        self._auth_requests = AUTH_REQUESTS
        self._preauth_key_exchanges = PREAUTH_KEY_EXCHANGES
        self._preauth_messages = PREAUTH_MESSAGES
        self._limited = {
            MSG_GLOBAL_REQUEST: (Bucket(GLOBAL_REQUESTS), "too many requests"),
            MSG_CHANNEL_OPEN: (Bucket(CHANNEL_OPENS), "too many channels opened in a second"),
        }
        self._key_exchanges = Bucket(KEY_EXCHANGES)
        self._empty_messages = Bucket(EMPTY_MESSAGES)
        self._last_kind = MSG_KEXINIT
        self._received = 0
        self._sent = self._sent_since_exchange = 0
        self._bytes_at_exchange = self._bytes_spent = 0
        self._finish = connection._finish_recv_packet
        vars(connection)["_finish_recv_packet"] = self._finished

    def _finished(
        self,
        kind: int,
        number: int,
        task: asyncio.Task[None] | None = None,
        is_async: bool = False,
    ) -> None:
        """Handle the end of asyncssh's work on a message."""
        if not is_async and kind in _HANDLED_BY_OTHERS:
            self._count_empty()
        self._finish(kind, number, task, is_async)

    def _count(self, kind: int, packet: asyncssh.packet.SSHPacket) -> None:
        if self._connection._transport is None:
            # asyncssh handles buffered messages after the end, when no client can get an answer.
            raise asyncssh.ConnectionLost("the connection has ended")
        last_kind, self._last_kind = self._last_kind, kind
        if kind == MSG_KEXINIT:
            self._count_key_exchange()
        elif kind == MSG_USERAUTH_REQUEST:
            if not self._auth_requests:
                raise asyncssh.ProtocolError("too many authentication requests")
            self._auth_requests -= 1
        elif kind in _DATA and len(packet.get_full_payload()) > _DATA[kind]:
            self._received += len(packet.get_full_payload())
        elif self.authenticated and kind == MSG_IGNORE and last_kind != MSG_IGNORE:
            pass  # asyncssh's client sends one before each message
        else:
            if kind in self._limited:
                bucket, text = self._limited[kind]
                if not bucket.take():
                    raise asyncssh.ProtocolError(text)
            self._count_empty()

    def _count_key_exchange(self) -> None:
        if self._connection._kexinit_sent:
            return  # the answer to a key exchange that this side started
        if not self.authenticated:
            if not self._preauth_key_exchanges:
                raise asyncssh.ProtocolError("too many key exchanges before authentication")
            self._preauth_key_exchanges -= 1
            return
        total = self._total_bytes()
        is_free = total - self._bytes_at_exchange >= KEY_EXCHANGE_BYTES
        if not is_free and not self._key_exchanges.take():
            raise asyncssh.ProtocolError("too many key exchanges")
        self._bytes_at_exchange = total

    def _count_empty(self) -> None:
        """Count a message without data."""
        if not self.authenticated:
            if not self._preauth_messages:
                raise asyncssh.ProtocolError("too many messages before authentication")
            self._preauth_messages -= 1
        elif not self._empty_messages.take():
            if self._total_bytes() - self._bytes_spent < EMPTY_MESSAGE_BYTES:
                raise asyncssh.ProtocolError("too many messages without data")
            self._bytes_spent += EMPTY_MESSAGE_BYTES

    def _total_bytes(self) -> int:
        """Return the bytes in both directions.

        asyncssh counts the sent bytes since the last key exchange.
        """
        sent_since_exchange = self._connection._rekey_bytes_sent
        if sent_since_exchange < self._sent_since_exchange:
            self._sent_since_exchange = 0
        self._sent += sent_since_exchange - self._sent_since_exchange
        self._sent_since_exchange = sent_since_exchange
        return self._sent + self._received
