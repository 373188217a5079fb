"""Protocol adapter only. Input and output of a CLI command, over its session channel.

Critical sections: none; no method awaits between a check of the state and its change. Callbacks
deliver input and free output space; one task reads and writes. Unread input is bounded: the channel
stops reading at MAX_PENDING_INPUT bytes, and then the client's window fills up.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncssh

if TYPE_CHECKING:
    from boxd.ssh.connection.session import Channel

MAX_PENDING_INPUT = 64 * 1024
"""Size of unread input at which the channel stops reading, in bytes."""


class ChannelStdio:
    """The `command.Stdio` of one session channel.

    Call `start` when the channel is open, and `end` when the command has ended.
    """

    def __init__(self) -> None:
        self.terminal = False
        self._chan: Channel
        self._input = bytearray()
        self._input_ended = False
        self._input_changed = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    def start(self, chan: Channel, *, terminal: bool) -> None:
        """Bind the channel. `read` returns input that arrived earlier, too."""
        self._chan, self.terminal = chan, terminal

    async def read(self) -> bytes:
        """Wait for input and return all of it; return b"" at its end."""
        while not self._input and not self._input_ended:
            self._input_changed.clear()
            await self._input_changed.wait()
        data = bytes(self._input)
        self._input.clear()
        self._chan.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """Send output once the client accepts more; drop it if the channel is closing."""
        await self._write(data, None)

    async def write_error(self, data: bytes) -> None:
        """Send bytes to standard error, like `write`."""
        await self._write(data, asyncssh.EXTENDED_DATA_STDERR)

    async def _write(self, data: bytes, datatype: int | None) -> None:
        await self._writable.wait()
        if not self._chan.is_closing():
            self._chan.write(data, datatype)

    def end(self) -> None:
        """Drop all unread and all further input. The channel may read again."""
        self._input_ended = True
        self._input.clear()

    # --- callbacks of the channel ------------------------------------------------------------

    def feed_data(self, data: bytes, chan: Channel) -> None:
        """Store input from the client."""
        if self._input_ended:
            return
        self._input += data
        self._input_changed.set()
        if len(self._input) >= MAX_PENDING_INPUT:
            chan.pause_reading()

    def feed_eof(self) -> None:
        """Mark the end of input."""
        self._input_ended = True
        self._input_changed.set()

    def pause_writing(self) -> None:
        """Block `write`, because the client does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Unblock `write`, because the client reads again or the channel has closed."""
        self._writable.set()
