"""Limits on what an agent may send in a second, and the pauses after it exceeds them.

Bytes need no limit here: a channel's window stops a sender that is faster than the reader. Messages
without bytes, and connections, cost the daemon time without any window.
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
"""Number of open channels of one tunnel at which the agent may not open more. Both sides count."""
OPENS = (64, 64)
"""Channels that an agent may open: (per second, at once). All pairs below have the same form."""
REQUESTS = (64, 64)
"""Global requests; also lines of the control channel."""
EXCHANGES = (1, 10)
"""Key exchanges. asyncssh starts one for each GiB."""
EMPTY = (2000, 8000)
"""Messages without bytes for a reader.

A command needs six, and one more for each 256 KiB of input. *Measured*: 20,000 to 40,000 a second
take all of the daemon's time."""
DIALS = (10, 30)
"""Connections. A rejected agent dials five times a second."""

FIRST_PAUSE_S = 0.5
"""Length of the first pause in seconds."""
LONGEST_PAUSE_S = 60.0
"""Length of the longest pause in seconds."""
FORGIVEN_S = 600.0
"""Seconds without misbehaviour after which pauses start short again."""

_IGNORE, _KEXINIT, _GLOBAL_REQUEST, _CHANNEL_OPEN = 2, 20, 80, 90
_DATA = {94: 9, 95: 13}
"""Messages with bytes, and their length without the bytes."""


class Bucket:
    """A token bucket: `limit` is (tokens per second, largest number at once)."""

    def __init__(self, limit: tuple[int, int]) -> None:
        self._rate, self._size = limit
        self._tokens = float(self._size)
        self._when = time.monotonic()

    def take(self) -> bool:
        """Take a token; return whether one was available."""
        now = time.monotonic()
        self._tokens = min(self._size, self._tokens + (now - self._when) * self._rate)
        self._when = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Tap(ABC):
    """Sees the messages of one connection before asyncssh handles them.

    It replaces attributes of the connection and its channels through which asyncssh passes
    messages: asyncssh has no hook for this, and no callback for most messages. An exception of
    `_count` acts like one of asyncssh's own: a DisconnectError ends the connection with its text.
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
        """Inspect one message before it is handled."""

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
    """Counts the messages of an agent.

    Too many messages raise asyncssh.ProtocolError, which ends the connection.
    """

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
            # Answering messages that are still queued would log one warning each.
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
            raise asyncssh.ProtocolError("too many messages without data")


class Pauses:
    """The pause of a misbehaving agent, which doubles each time."""

    def __init__(self) -> None:
        self._next = FIRST_PAUSE_S
        self._last = time.monotonic()

    def next(self) -> float:
        """Record one more offence and return the pause in seconds."""
        now = time.monotonic()
        if now - self._last > FORGIVEN_S:
            self._next = FIRST_PAUSE_S
        self._last = now
        pause, self._next = self._next, min(self._next * 2, LONGEST_PAUSE_S)
        return pause
