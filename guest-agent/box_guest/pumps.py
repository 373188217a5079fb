"""Bytes between file descriptors and a channel, with back-pressure and bounded memory.

Both classes live in one event loop and never await: each callback runs to its end, so their state
needs no locks.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK = 128 * 1024
"""Largest read; as large as one packet of the tunnel."""
TAIL = 1 << 20
"""The most that a pipe or terminal can hold. What is read beyond it after a command's end was not
written by the command."""


class OutputPump:
    """Reads a descriptor and hands everything to `sink` until end of file.

    `done` is set when nothing more will come. `pause`/`resume` follow the channel's window.
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
        """Stops reading; the writer in the box blocks when its pipe is full."""
        self._paused = True
        self._follow()

    def resume(self) -> None:
        """Goes on reading."""
        self._paused = False
        self._follow()
        if self._last_call:
            self._loop.call_soon(self._read)

    def last_call(self) -> None:
        """Ends at the next moment with nothing to read: the command is gone.

        Someone else may hold the other end open for ever and even write to it, so that the amount
        read from here on is limited too. A slow reader of the channel still gets everything.
        """
        self._last_call = True
        self._read()

    def close(self) -> None:
        """Lets go of the descriptor."""
        if not self.done.done():
            self._finish()

    def _follow(self) -> None:
        wanted = not self._paused and not self.done.done()
        if wanted and not self._reading:
            self._loop.add_reader(self._descriptor, self._read)
        elif self._reading and not wanted:
            self._loop.remove_reader(self._descriptor)
        self._reading = wanted

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
            # EIO is how a terminal says that its last user is gone.
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
    """Writes what the channel brings to a descriptor.

    `hold(True)` is called when the descriptor takes no more for now, `hold(False)` when everything
    is written: at most one channel window is buffered here. A reader that went away makes the rest
    vanish, as it does for a pipe.
    """

    def __init__(
        self, descriptor: int, hold: Callable[[bool], None], closing: Callable[[bool], bytes] | None
    ) -> None:
        """`closing(in_line)` gives the bytes that stand for end of file where closing the
        descriptor does not say it (a terminal); the descriptor is then left open."""
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

    def feed(self, data: bytes) -> None:
        """Takes bytes in order."""
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
        """No more bytes will come."""
        self._ended = True
        if not self._waiting:
            self._finish()

    def close(self) -> None:
        """Drops what is waiting and lets go of the descriptor."""
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
        """How many bytes went out; None, and closed, when the reader is gone."""
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
