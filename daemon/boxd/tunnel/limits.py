"""What an agent may ask of the daemon in a second, and for how long it is not listened to after.

Bytes need no limit here: a channel's window holds back who sends more than is read. What costs the
daemon time without any window are messages that carry no bytes, and connections.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import asyncssh

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Handler = Callable[[int, int, asyncssh.packet.SSHPacket], bool | Awaitable[None]]

MAX_CHANNELS = 256
"""Open in one tunnel, whoever opened them, when the agent wants another one."""
OPENS = (64, 64)
"""Channels that an agent wants to open: a second, and at once. As all pairs below."""
REQUESTS = (64, 64)
"""Global requests; also lines of the control channel."""
EXCHANGES = (1, 10)
"""Key exchanges. Asyncssh wants one for each GiB."""
EMPTY = (2000, 8000)
"""Messages without bytes for a reader. A command needs six, each 256 KiB written to one needs one.
*Measured*: the daemon takes 20,000 to 40,000 a second and does nothing else then."""
DIALS = (10, 30)
"""Connections. An agent that is refused dials five times a second."""

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0
FORGIVEN_S = 600.0
"""Good behaviour after which the pauses begin small again."""

_IGNORE, _KEXINIT, _GLOBAL_REQUEST, _CHANNEL_OPEN = 2, 20, 80, 90
_DATA = {94: 9, 95: 13}
"""Messages with bytes, and what they are long beside them."""


class Bucket:
    """So many a second; more at once only when it was quiet before."""

    def __init__(self, limit: tuple[int, int]) -> None:
        self._rate, self._size = limit
        self._left = float(self._size)
        self._when = time.monotonic()

    def take(self) -> bool:
        """Whether there was one left."""
        now = time.monotonic()
        self._left = min(self._size, self._left + (now - self._when) * self._rate)
        self._when = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Tap(ABC):
    """Sees the messages of one connection before asyncssh handles them.

    It stands in front of where asyncssh hands messages to the connection and to its channels, by
    attributes of these very objects: asyncssh has no place for it, and calls no one for most of
    them. An exception of `_count` is one of asyncssh's handling: a DisconnectError ends the
    connection with its text.
    """

    def __init__(
        self, connection: asyncssh.SSHClientConnection | asyncssh.SSHServerConnection
    ) -> None:
        self._connection = connection
        self._channels = 0
        self._add, self._remove = connection.add_channel, connection.remove_channel
        vars(connection)["process_packet"] = self._before(connection.process_packet)
        vars(connection)["add_channel"] = self._added
        vars(connection)["remove_channel"] = self._removed

    @abstractmethod
    def _count(self, kind: int, packet: asyncssh.packet.SSHPacket) -> None:
        """Looks at one message, before it is handled."""

    def _added(self, channel: asyncssh.channel.SSHChannel[bytes]) -> int:
        vars(channel)["process_packet"] = self._before(channel.process_packet)
        number = self._add(channel)
        self._channels += 1
        return number

    def _removed(self, number: int) -> None:
        self._remove(number)
        self._channels -= 1

    def _before(self, handle: Handler) -> Handler:
        def counted(
            kind: int, number: int, packet: asyncssh.packet.SSHPacket
        ) -> bool | Awaitable[None]:
            self._count(kind, packet)
            return handle(kind, number, packet)

        return counted


class Meter(Tap):
    """Counts the messages of an agent; too many raise asyncssh.ProtocolError, which ends it."""

    def __init__(self, connection: asyncssh.SSHClientConnection) -> None:
        super().__init__(connection)
        self._limits = {
            _KEXINIT: (Bucket(EXCHANGES), "too many key exchanges"),
            _GLOBAL_REQUEST: (Bucket(REQUESTS), "too many requests"),
            _CHANNEL_OPEN: (Bucket(OPENS), "too many channels opened in a second"),
        }
        self._empty = Bucket(EMPTY)
        self._last = _KEXINIT

    def _count(self, kind: int, packet: asyncssh.packet.SSHPacket) -> None:
        transport = self._connection._transport
        if transport is None or transport.is_closing():
            # Answers to what it had still sent would be one warning each.
            raise asyncssh.ConnectionLost("the agent is gone")
        last, self._last = self._last, kind
        if kind == _IGNORE and last != _IGNORE:
            return  # asyncssh sends one before each message
        if kind in _DATA:
            if len(packet.get_full_payload()) > _DATA[kind]:
                return
        elif kind in self._limits:
            bucket, text = self._limits[kind]
            if not bucket.take():
                raise asyncssh.ProtocolError(text)
            if kind == _CHANNEL_OPEN and self._channels >= MAX_CHANNELS:
                raise asyncssh.ProtocolError(f"more than {MAX_CHANNELS} channels")
        if not self._empty.take():
            raise asyncssh.ProtocolError("too many messages that say nothing")


class Pauses:
    """How long an agent is not listened to after it misbehaved: twice as long each time."""

    def __init__(self) -> None:
        self._next = FIRST_PAUSE_S
        self._last = time.monotonic()

    def next(self) -> float:
        """Seconds, after one more offence."""
        now = time.monotonic()
        if now - self._last > FORGIVEN_S:
            self._next = FIRST_PAUSE_S
        self._last = now
        pause, self._next = self._next, min(self._next * 2, LONGEST_PAUSE_S)
        return pause
