"""Protocol adapter only. How much a client may say that costs us time and moves no bytes.

Asyncssh answers whatever it is sent for as long as it is sent, before a key is proved as well as
after. Bytes need no limit here: a channel's window holds back who sends more than is read.

Counted are the messages of one connection; too many raise asyncssh.ProtocolError, which ends it
and tells the client why.
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
"""Of every method. 32 keys are as many as a client may offer (`auth.MAX_TRIES`)."""
EARLY_EXCHANGES = 1
"""Key exchanges, after the first, before a key is proved. No client known to us wants one."""
EARLY = 100
"""Other messages before a key is proved; asyncssh's client sends one with each request."""

EXCHANGES = (1, 10)
"""Key exchanges after less than EXCHANGE_BYTES: a second, and at once. As all pairs below."""
EXCHANGE_BYTES = 256 * 1024
"""Moved since the last, either way, a key exchange is free: one costs what these bytes cost."""
OPENS = (200, 1000)
"""Channels. A client that runs one command after the other over one connection wants 150."""
REQUESTS = (64, 64)
"""Global requests. Clients send two at first, and one a second if they look whether we live."""
EMPTY = (2000, 8000)
"""Messages without bytes for a reader. A command needs six."""
EMPTY_BYTES = 4 * 1024
"""Moved either way, one more message without bytes is free: clients open windows bit by bit."""

_DATA = {MSG_CHANNEL_DATA: 9, MSG_CHANNEL_EXTENDED_DATA: 13}
"""Messages with bytes, and what they are long beside them."""
_ELSEWHERE = {
    *range(MSG_KEX_FIRST, MSG_KEX_LAST + 1),
    *range(MSG_USERAUTH_FIRST, MSG_USERAUTH_LAST + 1),
}
"""Messages of a key exchange or an authentication that is under way: not the connection's own."""


class Meter(Tap):
    """Counts the messages of one client."""

    def __init__(self, connection: asyncssh.SSHServerConnection) -> None:
        super().__init__(connection)
        self.proved = False
        """Whether the client has proved a key."""
        self._auth_requests = AUTH_REQUESTS
        self._early_exchanges = EARLY_EXCHANGES
        self._early = EARLY
        self._limited = {
            MSG_GLOBAL_REQUEST: (Bucket(REQUESTS), "too many requests"),
            MSG_CHANNEL_OPEN: (Bucket(OPENS), "too many channels opened in a second"),
        }
        self._exchanges = Bucket(EXCHANGES)
        self._empty = Bucket(EMPTY)
        self._last = MSG_KEXINIT
        self._received = 0
        self._sent = self._sent_since = 0
        self._exchanged_at = self._paid = 0
        self._finish = connection._finish_recv_packet
        vars(connection)["_finish_recv_packet"] = self._finished

    def _finished(
        self,
        kind: int,
        number: int,
        task: asyncio.Task[None] | None = None,
        is_async: bool = False,
    ) -> None:
        """Asyncssh is done with a message."""
        if not is_async and kind in _ELSEWHERE:
            self._say_nothing()
        self._finish(kind, number, task, is_async)

    def _count(self, kind: int, packet: asyncssh.packet.SSHPacket) -> None:
        if self._connection._transport is None:
            # It has ended, and asyncssh goes on with what had come: there is nobody to answer.
            raise asyncssh.ConnectionLost("the connection has ended")
        last, self._last = self._last, kind
        if kind == MSG_KEXINIT:
            self._exchange()
        elif kind == MSG_USERAUTH_REQUEST:
            if not self._auth_requests:
                raise asyncssh.ProtocolError("too many authentication requests")
            self._auth_requests -= 1
        elif kind in _DATA and len(packet.get_full_payload()) > _DATA[kind]:
            self._received += len(packet.get_full_payload())
        elif self.proved and kind == MSG_IGNORE and last != MSG_IGNORE:
            pass  # asyncssh's client sends one before each message
        else:
            if kind in self._limited:
                bucket, text = self._limited[kind]
                if not bucket.take():
                    raise asyncssh.ProtocolError(text)
            self._say_nothing()

    def _exchange(self) -> None:
        if self._connection._kexinit_sent:
            return  # the answer to ours
        if not self.proved:
            if not self._early_exchanges:
                raise asyncssh.ProtocolError("too many key exchanges before authentication")
            self._early_exchanges -= 1
            return
        moved = self._moved()
        if moved - self._exchanged_at < EXCHANGE_BYTES and not self._exchanges.take():
            raise asyncssh.ProtocolError("too many key exchanges")
        self._exchanged_at = moved

    def _say_nothing(self) -> None:
        if not self.proved:
            if not self._early:
                raise asyncssh.ProtocolError("too many messages before authentication")
            self._early -= 1
        elif not self._empty.take():
            if self._moved() - self._paid < EMPTY_BYTES:
                raise asyncssh.ProtocolError("too many messages that say nothing")
            self._paid += EMPTY_BYTES

    def _moved(self) -> int:
        """Bytes so far, both ways. Asyncssh counts what it sends from one key exchange on."""
        since = self._connection._rekey_bytes_sent
        if since < self._sent_since:
            self._sent_since = 0
        self._sent += since - self._sent_since
        self._sent_since = since
        return self._sent + self._received
