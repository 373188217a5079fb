"""Messages with file descriptors between two processes, over a socket pair.

The socket keeps the boundaries of packets (SOCK_SEQPACKET). A message is one packet or more. The
first byte of a packet is MORE, or LAST for the last packet of its message. The descriptors of a
message travel with its last packet.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
import stat
import struct
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    OnMessage = Callable[[bytes, list[int]], None]
    """Called with the bytes and the descriptors of a message, which the callee must close."""

PACKET_MAX = 32 * 1024
"""Maximum size of a packet, in bytes."""
MORE, LAST = b"\0", b"\1"
DESCRIPTORS_MAX = 2
"""Maximum number of descriptors in a message."""
BACKLOG_MAX = 256
"""Packets that wait for the other process. While there are more, a bounded end reads no message."""
_NO_LINGER = struct.pack("ii", 0, 0)
_ANCILLARY = socket.CMSG_SPACE(DESCRIPTORS_MAX * array.array("i").itemsize)


class ChannelError(Exception):
    """The other process broke the rules of this module, or a message is too large."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a new channel."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Channel:
    """One end of a channel, in the running event loop. `close` ends it."""

    def __init__(
        self,
        sock: socket.socket,
        on_message: OnMessage,
        on_end: Callable[[ChannelError | None], None],
        *,
        message_max: int,
        bounded: bool = False,
    ) -> None:
        """`on_end` is called once if the other process closes or breaks the channel.

        `message_max` is the maximum size of a received message, in bytes. A `bounded` end stops
        reading while the other one does not read. Only one of the two may be bounded.
        """
        self._bounded = bounded
        self._socket = sock
        self._on_message = on_message
        self._on_end = on_end
        self._message_max = message_max
        self._parts = bytearray()
        self._waiting: deque[tuple[bytes, list[int]]] = deque()
        self._paused = False
        self._open = True
        self._loop = asyncio.get_running_loop()
        sock.setblocking(False)
        self._loop.add_reader(sock, self._on_readable)

    @property
    def backlog(self) -> int:
        """The number of packets that wait for the other process."""
        return len(self._waiting)

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a message and close its descriptors, also if the channel is closed."""
        if not self._open:
            _close(descriptors)
            return
        pieces = range(0, max(1, len(message)), PACKET_MAX)
        for start in pieces:
            last = start == pieces[-1]
            packet = (LAST if last else MORE) + message[start : start + PACKET_MAX]
            self._waiting.append((packet, list(descriptors) if last else []))
        self._flush()

    def pause(self, paused: bool) -> None:
        """Read no messages while `paused`."""
        self._paused = paused
        self._read_or_wait()

    def close(self) -> None:
        """Close this end. Idempotent; `on_end` is not called."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
            for _, descriptors in self._waiting:
                _close(descriptors)
            self._waiting.clear()

    def _flush(self) -> None:
        try:
            while self._waiting:
                packet, descriptors = self._waiting[0]
                _send(self._socket, packet, descriptors)
                self._waiting.popleft()
                _close(descriptors)
        except BlockingIOError:
            self._loop.add_writer(self._socket, self._flush)
        except OSError:
            self._end(None)
            return
        else:
            self._loop.remove_writer(self._socket)
        self._read_or_wait()

    def _read_or_wait(self) -> None:
        if not self._open:
            return
        if self._paused or (self._bounded and len(self._waiting) > BACKLOG_MAX):
            self._loop.remove_reader(self._socket)
        else:
            self._loop.add_reader(self._socket, self._on_readable)

    def _on_readable(self) -> None:
        try:
            packet, descriptors = _receive(self._socket)
        except BlockingIOError:
            return
        except OSError:
            self._end(None)
            return
        except ChannelError as error:
            self._end(error)
            return
        if not packet:  # the other process has ended, or sent an empty packet
            close_received(descriptors)
            self._end(None)
            return
        self._take(packet, descriptors)

    def _take(self, packet: bytes, descriptors: list[int]) -> None:
        """Add a packet to the message in progress; pass a complete message on."""
        kind = packet[:1]
        self._parts += packet[1:]
        too_large = len(self._parts) > self._message_max
        if too_large or kind not in (MORE, LAST) or (kind == MORE and descriptors):
            close_received(descriptors)
            self._end(ChannelError("too large" if too_large else "not a valid packet"))
        elif kind == LAST:
            message, self._parts = bytes(self._parts), bytearray()
            self._on_message(message, descriptors)

    def _end(self, error: ChannelError | None) -> None:
        if self._open:
            self.close()
            self._on_end(error)


def _send(sock: socket.socket, packet: bytes, descriptors: list[int]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    sock.sendmsg([packet], rights if descriptors else [])


def _receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Return a packet, empty at the end, and its descriptors.

    Raises ChannelError for more than the limits allow.
    """
    packet, ancillary, flags, _ = sock.recvmsg(PACKET_MAX + 1, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        close_received(descriptors)
        raise ChannelError("a packet is too large, or has too many descriptors")
    return packet, descriptors.tolist()


def close_received(descriptors: Sequence[int]) -> None:
    """Close descriptors of a process that may be hostile.

    A sender can let the close of a socket wait (SO_LINGER). So this switches the option off. A
    thread closes the socket, because the sender may switch it on again before the close.
    """
    for descriptor in descriptors:
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
                copy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            threading.Thread(target=os.close, args=(descriptor,), daemon=True).start()
        else:
            os.close(descriptor)


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)
