"""Protocol adapter only. Input and output of a command of ours, over its session channel.

Critical sections: none; nothing is awaited between a look at the state and its change. Callbacks
bring input and room for output, one task reads and writes. Unread input is bounded: from WAITING
bytes on the channel is not read, so that the client's window fills up.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from boxd.ssh.connection.session import Channel

WAITING = 64 * 1024
"""Bytes of input that wait for the command before the client does."""


class ChannelStdio:
    """See `commands.command.Stdio`. `start` once the channel is open, `end` with the command."""

    def __init__(self) -> None:
        self.terminal = False
        self._chan: Channel
        self._waiting = bytearray()
        self._over = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def start(self, chan: Channel, *, terminal: bool) -> None:
        """The command begins. What has come before is there to be read."""
        self._chan, self.terminal = chan, terminal

    async def read(self) -> bytes:
        """See Stdio."""
        while not self._waiting and not self._over:
            self._news.clear()
            await self._news.wait()
        data = bytes(self._waiting)
        self._waiting.clear()
        self._chan.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """See Stdio."""
        await self._room.wait()
        if not self._chan.is_closing():
            self._chan.write(data)

    def end(self) -> None:
        """Nobody reads any more: what comes still is dropped. The channel may be read on."""
        self._over = True
        self._waiting.clear()

    # --- what the channel tells --------------------------------------------------------------

    def came(self, data: bytes, chan: Channel) -> None:
        """Input."""
        if self._over:
            return
        self._waiting += data
        self._news.set()
        if len(self._waiting) >= WAITING:
            chan.pause_reading()

    def ended(self) -> None:
        """The end of input."""
        self._over = True
        self._news.set()

    def full(self) -> None:
        """The client does not read."""
        self._room.clear()

    def empty(self) -> None:
        """The client reads again, or nothing is to be written any more."""
        self._room.set()
