"""Channels are held while their connection waits, and go on in their order."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import asyncssh
import pytest
from asyncssh.constants import MSG_GLOBAL_REQUEST
from asyncssh.packet import Boolean, String, UInt32

from box_guest.shared import backpressure
from box_guest.shared.backpressure import HIGH, Backpressure
from box_guest.shared.packed import Packed
from tests.harness.ssh.unread import GIANT, begin_keys_and_stop, read_again, read_nothing
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PIECE = 1 << 15
KERNEL = 16 << 20
"""More than both sockets hold."""


class Writer(asyncssh.SSHServerSession[bytes]):
    """Writes whenever it may."""

    def __init__(self) -> None:
        self.may = True
        self.calls: list[str] = []
        self.written = 0
        self.read = b""
        self.slow = False
        self.chan: asyncssh.SSHServerChannel[bytes]

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self.chan = chan

    def exec_requested(self, command: str) -> bool:
        return True

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self.read += data
        if self.slow:
            self.chan.pause_reading()

    def pause_writing(self) -> None:
        self.may = False
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.may = True
        self.calls.append("resume")

    def write_while_it_may(self, most: int = KERNEL) -> None:
        """Pieces, until told to stop or `most` bytes are written."""
        while self.may and self.written < most:
            self.chan.write(bytes(PIECE))
            self.written += PIECE


@dataclass
class Pair(asyncssh.SSHServer):
    """Both ends of a connection; the server's has back-pressure."""

    sessions: list[Writer] = field(default_factory=list)
    lost: list[Exception | None] = field(default_factory=list)
    watch: Backpressure = field(init=False)
    server: asyncssh.SSHServerConnection = field(init=False)
    client: asyncssh.SSHClientConnection = field(init=False)

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self.server, self.watch = conn, Backpressure(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    def begin_auth(self, username: str) -> bool:
        return False

    def session_requested(self) -> Writer:
        self.sessions.append(Writer())
        return self.sessions[-1]

    async def open(self, window: int = GIANT) -> tuple[Writer, Reader]:
        """A channel: the writing session of the server and what the client has got of it."""
        reader = Reader()
        await self.client.create_session(lambda: reader, "x", window=window, encoding=None)
        return self.sessions[-1], reader


class Reader(asyncssh.SSHClientSession[bytes]):
    """Keeps count, and the status."""

    def __init__(self) -> None:
        self.size = 0
        self.ended = False
        self.status: int | None = None

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self.size += len(data)

    def eof_received(self) -> bool:
        self.ended = True
        return True

    def exit_status_received(self, status: int) -> None:
        self.status = status


@asynccontextmanager
async def connected() -> AsyncIterator[Pair]:
    """A pair over loopback."""
    pair = Pair()
    listener = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=lambda: pair,
        server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
        encoding=None,
        config=None,
        gss_host=None,
    )
    pair.client = await asyncssh.connect(
        "127.0.0.1",
        listener.get_port(),
        known_hosts=None,
        config=None,
        client_keys=None,
        agent_path=None,
        gss_host=None,
    )
    try:
        yield pair
    finally:
        for end in (pair.client, pair.server):
            end.abort()
            await end.wait_closed()
        listener.close()
        await listener.wait_closed()


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """See `connected`."""
    async with connected() as made:
        yield made


async def test_a_window_alone_does_not_let_a_session_write_on(pair: Pair) -> None:
    session, reader = await pair.open()
    read_nothing(pair.client)
    session.write_while_it_may()
    assert pair.watch.waiting
    assert session.written < KERNEL
    read_again(pair.client)
    await until(lambda: session.may and reader.size == session.written)
    assert session.calls.count("resume") == 1


async def test_all_channels_stop_and_all_go_on(pair: Pair) -> None:
    first, _ = await pair.open()
    second, reader = await pair.open()
    read_nothing(pair.client)
    first.write_while_it_may()
    assert not second.may
    read_again(pair.client)
    await until(lambda: first.may and second.may)
    second.write_while_it_may(PIECE)
    await until(lambda: reader.size == PIECE)


async def test_a_session_whose_window_is_full_waits_for_both(pair: Pair) -> None:
    narrow, _ = await pair.open(window=PIECE)
    wide, _ = await pair.open()
    channel = pair.client._channels[0]
    channel.pause_reading()
    narrow.write_while_it_may()
    assert not narrow.may
    read_nothing(pair.client)
    wide.write_while_it_may()
    read_again(pair.client)
    await until(lambda: wide.may)
    assert not narrow.may, "its window is still full"
    channel.resume_reading()
    await until(lambda: narrow.may)


async def test_single_bytes_wait_in_small_number(pair: Pair) -> None:
    session, reader = await pair.open(window=1)
    written = 0
    while session.may:
        session.chan.write(b"x", written % 2 or None)
        written += 1
    assert written < 1000
    session.chan._process_window_adjust(0, 0, asyncssh.packet.SSHPacket(UInt32(GIANT - 1)))
    await until(lambda: session.may and reader.size == written)


async def test_single_bytes_that_nobody_takes_need_little_memory(pair: Pair) -> None:
    session, _ = await pair.open()
    session.chan.pause_reading()
    (channel,) = pair.client._channels.values()
    for _ in range(PIECE):
        channel.write(b"x")
    waiting = session.chan._recv_buf
    assert isinstance(waiting, Packed)
    await until(lambda: waiting.memory >= PIECE)
    assert waiting.memory < PIECE + 1000
    session.chan.resume_reading()
    assert session.read == b"x" * PIECE


async def test_a_session_that_takes_piece_by_piece_keeps_a_window_at_most(pair: Pair) -> None:
    chan, _ = await pair.client.create_session(Reader, "x", encoding=None)
    session = pair.sessions[-1]
    session.slow = True
    window, waiting = session.chan._init_recv_window, session.chan._recv_buf
    assert isinstance(waiting, Packed)
    size = 4 * window
    chan.write(bytes(size))
    for _ in range(20):
        await until(lambda: session.chan._recv_window == 0)
        assert waiting.size <= window
        session.chan.resume_reading()
    assert len(session.read) > window
    session.slow = False
    session.chan.resume_reading()
    await until(lambda: len(session.read) == size)
    assert session.chan.get_recv_window() == window


async def test_what_a_held_session_says_last_arrives_in_order(pair: Pair) -> None:
    filler, _ = await pair.open()
    session, reader = await pair.open()
    read_nothing(pair.client)
    filler.write_while_it_may()
    transport = pair.server._transport
    assert transport is not None
    unsent = transport.get_write_buffer_size()
    session.chan.write(b"last words")
    session.chan.write_eof()
    assert transport.get_write_buffer_size() == unsent
    read_again(pair.client)
    await until(lambda: reader.ended)
    assert reader.size == len(b"last words")


async def test_a_status_told_while_the_socket_is_full_arrives(pair: Pair) -> None:
    session, reader = await pair.open()
    read_nothing(pair.client)
    session.write_while_it_may()
    session.chan.exit(7)
    read_again(pair.client)
    await until(lambda: reader.status == 7)
    assert reader.size == session.written


async def test_each_channel_has_its_turn(pair: Pair) -> None:
    """One that fills the socket as soon as it may does not keep the others waiting for ever."""
    greedy, _ = await pair.open()
    patient, _ = await pair.open()

    def more() -> None:
        Writer.resume_writing(greedy)
        greedy.write_while_it_may(1 << 40)

    vars(greedy)["resume_writing"] = more
    greedy.write_while_it_may(1 << 40)
    await until(lambda: patient.calls.count("resume") >= 3)


async def test_new_keys_hold_the_channels_until_they_are_made(pair: Pair) -> None:
    session, reader = await pair.open()
    pair.client._send_kexinit()
    pair.client._kexinit_sent = True
    await until(lambda: "pause" in session.calls)
    await until(lambda: session.may and not pair.watch.waiting)
    session.write_while_it_may(PIECE)
    await until(lambda: reader.size == PIECE)


async def test_keys_that_are_never_made_keep_nothing_and_end_the_connection(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backpressure, "KEYS_S", 0.3)
    session, _ = await pair.open()
    begin_keys_and_stop(pair.client)
    await until(lambda: not session.may)
    session.write_while_it_may()
    assert session.written == 0
    await until(lambda: pair.lost)
    assert isinstance(pair.lost[0], asyncssh.ProtocolError)
    assert "key re-exchange" in str(pair.lost[0])


async def test_questions_whose_answers_are_not_read_end_the_connection(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backpressure, "UNREAD_MAX", HIGH + PIECE)
    session, _ = await pair.open()
    read_nothing(pair.client)
    session.write_while_it_may()
    for _ in range(2000):
        pair.client.send_packet(MSG_GLOBAL_REQUEST, String(b"x"), Boolean(True))
    await until(lambda: pair.lost)
    assert "not read" in str(pair.lost[0])


async def test_questions_inside_a_key_exchange_end_the_connection(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backpressure, "DEFERRED_MAX", 100)
    begin_keys_and_stop(pair.client)
    pair.client._kex_complete = True  # it goes on as if nothing were
    for _ in range(200):
        pair.client.send_packet(MSG_GLOBAL_REQUEST, String(b"x"), Boolean(True))
    await until(lambda: pair.lost)
    assert "not read" in str(pair.lost[0])


async def test_a_connection_may_end_while_it_is_held(pair: Pair) -> None:
    session, _ = await pair.open()
    read_nothing(pair.client)
    session.write_while_it_may()
    pair.server.abort()
    await until(lambda: pair.lost)
    await asyncio.sleep(0)
    assert not pair.server._channels
