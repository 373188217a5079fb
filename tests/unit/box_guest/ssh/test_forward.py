"""Connections of a box's mount to its stores, whose far end may be quick."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, cast

import pytest

from box_guest.ssh.forward import Offer

if TYPE_CHECKING:
    from collections.abc import Callable

    import asyncssh


class Far:
    """The daemon, as a connection and as a channel: says all it has to say before it is heard."""

    def __init__(self, said: bytes, *, ended: bool, gone: bool) -> None:
        self._said, self._ended, self._gone = said, ended, gone
        self.heard = b""
        self.closed = asyncio.Event()
        self.session: asyncssh.SSHForwarder | None = None

    async def create_unix_connection(
        self, factory: Callable[[], asyncssh.SSHForwarder], *_: object, **__: object
    ) -> None:
        """Opens the channel."""
        self.session = session = factory()
        session.connection_made(cast("asyncio.BaseTransport", self))
        if self._said:
            session.data_received(self._said)
        if self._ended:
            assert session.eof_received()
        if self._gone:
            session.connection_lost(None)

    def get_extra_info(self, name: str) -> None:
        """There is none."""

    def write(self, data: bytes) -> None:
        """Takes what the mount says."""
        self.heard += data

    def write_eof(self) -> None:
        """The mount has no more to say."""

    def get_write_buffer_size(self) -> int:
        """Nothing waits: `write` takes everything at once."""
        return 0

    def close(self) -> None:
        """The mount has gone."""
        self.closed.set()


async def passed_on(far: Far) -> tuple[socket.socket, asyncio.Event]:
    """The mount's end of a connection to it, and what tells that it is over."""
    connection, over = cast("asyncssh.SSHServerConnection", far), asyncio.Event()
    mine, accepted = socket.socketpair()
    for one in (mine, accepted):
        one.setblocking(False)
    await Offer(connection, "/store", lambda _: None).pass_on(accepted, over.set)
    return mine, over


async def read_all(mine: socket.socket) -> bytes:
    """What comes until the end."""
    found = b""
    while data := await asyncio.get_running_loop().sock_recv(mine, 100):
        found += data
    return found


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("said", [b"", b"a refusal"])
async def test_who_has_gone_by_then_is_heard_and_its_end_is(said: bytes, ended: bool) -> None:
    mine, over = await passed_on(Far(said, ended=ended, gone=True))
    async with asyncio.timeout(30):
        assert await read_all(mine) == said
        await over.wait()
    mine.close()


async def test_who_has_only_ended_is_heard_and_told() -> None:
    far = Far(b"first", ended=True, gone=False)
    mine, over = await passed_on(far)
    async with asyncio.timeout(30):
        assert await read_all(mine) == b"first"
        assert far.session is not None
        assert far.session._inpbuf == b"", "what was passed on is kept"
        await asyncio.get_running_loop().sock_sendall(mine, b"last")
        mine.close()
        await over.wait()
        await far.closed.wait()
    assert far.heard == b"last"
