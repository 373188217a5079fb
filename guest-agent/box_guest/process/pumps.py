"""Copies bytes between file descriptors and a channel, with back-pressure and bounded memory.

Both classes belong to one event loop and never await: each callback runs to its end, so their state
needs no locks.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK = 128 * 1024
"""Maximum size of a read in bytes, the same as that of one packet of the tunnel."""
TAIL = 1 << 20
"""Maximum size of the content of a pipe or terminal, in bytes.

Bytes read beyond it after a command's end were not written by the command.
"""


class OutputPump:
    """Reads a descriptor and passes all bytes to `sink` until end of file.

    `done` completes when no more bytes will follow. `pause` and `resume` follow the channel's
    window.
    """

    def __init__(self, descriptor: int, sink: Callable[[bytes], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor = descriptor
        self._sink = sink
        self._paused = False
        self._reading = False
        self._last_call = False
        self._tail = 0
        self.done: asyncio.Future[None] = self._loop.create_future()
        os.set_blocking(descriptor, False)
        self._follow()

    def pause(self) -> None:
        """Stop reading. The writer in the box blocks when its pipe is full."""
        self._paused = True
        self._follow()

    def resume(self) -> None:
        """Continue to read."""
        self._paused = False
        self._follow()
        if self._last_call:
            self._loop.call_soon(self._read)

    def last_call(self) -> None:
        """Finish as soon as nothing is left to read, because the command has ended.

        Another process may hold the other end open forever and even write to it. So the pump also
        limits the amount that it reads from now on. A slow reader of the channel still gets
        everything.
        """
        self._last_call = True
        self._read()

    def close(self) -> None:
        """Close the descriptor."""
        if not self.done.done():
            self._finish()

    def _follow(self) -> None:
        active = not self._paused and not self.done.done()
        if active and not self._reading:
            self._loop.add_reader(self._descriptor, self._read)
        elif self._reading and not active:
            self._loop.remove_reader(self._descriptor)
        self._reading = active

    def _read(self) -> None:
        if self._paused or self.done.done():
            return
        try:
            data = os.read(self._descriptor, CHUNK)
        except BlockingIOError:
            if self._last_call:
                self._finish()
            return
        except OSError:
            # A terminal returns EIO when its last user is gone.
            data = b""
        if not data:
            self._finish()
            return
        if self._last_call:
            self._tail += len(data)
        self._sink(data)
        if self._last_call and not self.done.done():
            if self._tail > TAIL:
                self._finish()
            else:
                self._loop.call_soon(self._read)

    def _finish(self) -> None:
        if self._reading:
            self._loop.remove_reader(self._descriptor)
            self._reading = False
        os.close(self._descriptor)
        self.done.set_result(None)


class InputPump:
    """Writes bytes from the channel to a descriptor.

    `hold(True)` is called when the descriptor accepts no more for now, `hold(False)` when
    everything is written: at most one channel window is buffered here. If the reader is gone, the
    pump discards the rest, as for a pipe.
    """

    def __init__(
        self, descriptor: int, hold: Callable[[bool], None], closing: Callable[[bool], bytes] | None
    ) -> None:
        """`closing(in_line)` returns the bytes that mean end of file where closing the descriptor
        does not (a terminal); the descriptor then stays open."""
        self._loop = asyncio.get_running_loop()
        self._descriptor = descriptor
        self._hold = hold
        self._closing = closing
        self._waiting = bytearray()
        self._held = False
        self._ended = False
        self._closed = False
        self._in_line = False
        os.set_blocking(descriptor, False)

    @property
    def closed(self) -> bool:
        """Whether the descriptor is closed, or will be after the buffered bytes."""
        return self._closed or self._ended

    def feed(self, data: bytes) -> None:
        """Take bytes, in order."""
        if self._closed:
            return
        self._in_line = not data.endswith(b"\n")
        written = 0 if self._waiting else self._write(data)
        if written is None or written == len(data):
            return
        self._waiting += memoryview(data)[written:]
        if not self._held:
            self._loop.add_writer(self._descriptor, self._flush)
            self._held = True
            self._hold(True)

    def end(self) -> None:
        """Close the input after the buffered bytes."""
        self._ended = True
        if not self._waiting:
            self._finish()

    def close(self) -> None:
        """Discard the buffered bytes and close the descriptor."""
        self._drop()

    def _flush(self) -> None:
        written = self._write(self._waiting)
        if written is None:
            return
        del self._waiting[:written]
        if self._waiting:
            return
        self._loop.remove_writer(self._descriptor)
        self._held = False
        if self._ended:
            self._finish()
        self._hold(False)

    def _write(self, data: bytes | bytearray) -> int | None:
        """Return the number of bytes written. If the reader is gone, close and return None."""
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:
            return 0
        except OSError:
            self._drop()
            return None

    def _finish(self) -> None:
        if self._closed:
            return
        if self._closing is None:
            self._drop()
            return
        last, self._closing = self._closing(self._in_line), None
        if last:
            self.feed(last)

    def _drop(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._waiting.clear()
        if self._held:
            self._loop.remove_writer(self._descriptor)
            self._held = False
            self._hold(False)
        os.close(self._descriptor)
