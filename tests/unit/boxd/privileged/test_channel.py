"""Messages and descriptors pass whole; whatever breaks the rules ends the channel."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from boxd.privileged import channel
from boxd.privileged.channel import DESCRIPTORS_MAX, LAST, MORE, PACKET_MAX, Channel, ChannelError
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MOST = 4 * PACKET_MAX


class End:
    """One end, with what it received."""

    def __init__(self, sock: socket.socket, *, bounded: bool = False) -> None:
        self.messages: list[tuple[bytes, list[int]]] = []
        self.ends: list[ChannelError | None] = []
        self.channel = Channel(
            sock,
            lambda message, descriptors: self.messages.append((message, descriptors)),
            self.ends.append,
            message_max=MOST,
            bounded=bounded,
        )


@pytest.fixture
async def ends() -> AsyncIterator[tuple[End, End]]:
    """Two connected ends."""
    left, right = channel.pair()
    both = End(left, bounded=True), End(right)
    yield both
    for end in both:
        end.channel.close()


LINGER = struct.pack("ii", 1, 3600)


async def test_a_socket_that_wants_to_wait_keeps_no_thread() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    before = threading.active_count()
    for _ in range(20):
        sock = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
        sock.setblocking(False)
        with suppress(BlockingIOError):
            while sock.send(bytes(1 << 20)):
                pass
        channel.close_received([sock.detach()])
        await until(lambda: threading.active_count() == before)
        peer.close()
    listener.close()


def descriptors() -> int:
    """Return the number of descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("size", [0, 1, PACKET_MAX - 1, PACKET_MAX, PACKET_MAX + 1, MOST])
async def test_messages_arrive_whole_and_in_order(ends: tuple[End, End], size: int) -> None:
    left, right = ends
    sent = [os.urandom(size), b"next"]
    for message in sent:
        left.channel.send(message)
    await until(lambda: len(right.messages) == 2)
    assert [message for message, _ in right.messages] == sent


async def test_descriptors_arrive_with_their_message(ends: tuple[End, End]) -> None:
    left, right = ends
    reader, writer = os.pipe()
    left.channel.send(b"x" * (PACKET_MAX + 1), [reader, writer])
    await until(lambda: bool(right.messages))
    (_, received) = right.messages[0]
    assert not any(map(os.get_inheritable, received))
    os.write(received[1], b"through")
    os.close(received[1])
    # The sender has closed its own descriptor: this is the end of the pipe.
    assert (os.read(received[0], 10), os.read(received[0], 10)) == (b"through", b"")
    os.close(received[0])


async def test_messages_wait_for_a_slow_reader(ends: tuple[End, End]) -> None:
    left, right = ends
    right.channel.pause(True)
    sent = [str(number).encode() * 1000 for number in range(2000)]
    for message in sent:
        left.channel.send(message)
    await asyncio.sleep(0)
    assert not right.messages
    right.channel.pause(False)
    await until(lambda: len(right.messages) == len(sent))
    assert [message for message, _ in right.messages] == sent


async def test_an_end_that_nobody_reads_takes_no_more_messages(ends: tuple[End, End]) -> None:
    left, right = ends
    right.channel.pause(True)
    while left.channel.backlog <= channel.BACKLOG_MAX:
        left.channel.send(bytes(PACKET_MAX - 1))
    right.channel.send(b"a question")
    for _ in range(10):
        await asyncio.sleep(0.01)
    assert not left.messages
    right.channel.pause(False)
    await until(lambda: bool(left.messages))


async def test_the_end_of_the_other_process_is_told_once(ends: tuple[End, End]) -> None:
    left, right = ends
    left.channel.close()
    left.channel.close()
    await until(lambda: bool(right.ends))
    assert right.ends == [None]
    assert not left.ends
    right.channel.send(b"too late")


@pytest.mark.parametrize(
    ("packets", "reason"),
    [
        ([b"\x02what"], "not a valid packet"),
        ([LAST + bytes(PACKET_MAX + 1)], "too large, or has too many"),
        ([MORE + bytes(PACKET_MAX)] * 5, "too large"),
    ],
)
async def test_what_breaks_the_rules_ends_the_channel(packets: list[bytes], reason: str) -> None:
    mine, theirs = channel.pair()
    end = End(theirs)
    for packet in packets:
        mine.send(packet)
    await until(lambda: bool(end.ends))
    assert end.ends[0] is not None
    assert reason in str(end.ends[0])
    assert not end.messages
    mine.close()


@pytest.mark.parametrize("count", [DESCRIPTORS_MAX + 1, 60])
async def test_too_many_descriptors_are_closed(count: int) -> None:
    before = descriptors()
    mine, theirs = channel.pair()
    end = End(theirs)
    socket.send_fds(mine, [LAST], [mine.fileno()] * count)
    await until(lambda: bool(end.ends))
    assert end.ends[0] is not None
    mine.close()
    assert descriptors() == before


@pytest.mark.parametrize("packet", [MORE, b"", b"\2"])
async def test_descriptors_of_a_wrong_packet_are_closed(packet: bytes) -> None:
    before = descriptors()
    mine, theirs = channel.pair()
    end = End(theirs)
    socket.send_fds(mine, [packet], [mine.fileno()])
    await until(lambda: bool(end.ends))
    mine.close()
    assert descriptors() == before


async def test_a_closed_end_keeps_no_descriptors(ends: tuple[End, End]) -> None:
    left, _ = ends
    left.channel.close()
    reader, writer = os.pipe()
    left.channel.send(b"", [reader])
    os.close(writer)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reader)
