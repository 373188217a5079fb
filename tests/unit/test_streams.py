"""Connections are cut, whatever has become of them."""

from __future__ import annotations

import asyncio

from tests.harness.streams import cut
from tests.harness.wait import until

MUCH = 30 << 20
"""Bytes; more than sockets hold."""


async def test_what_is_gone_is_left_alone_and_what_is_there_is_cut() -> None:
    ends: list[bytes] = []

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        last = b""
        while data := await reader.read(MUCH):
            last = data[-1:]
        ends.append(last)
        writer.close()

    async with await asyncio.start_server(swallow, "127.0.0.1", 0) as server:
        for sent in (True, False):
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(bytes(MUCH) if sent else b"x")
            if sent:
                writer.close()
                await until(lambda: ends)
                await writer.wait_closed()
            cut(writer)
        await until(lambda: len(ends) == 2)
    assert ends == [b"\0", b"x"]
